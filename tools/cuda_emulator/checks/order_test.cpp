#include "checks/order.h"

#include <doctest/doctest.h>

using namespace emulator;

namespace {
OperationOrder& order() { return OperationOrder::instance(); }
/// Streams of the tests: keys that no other test uses.
StreamKey new_stream() {
  static StreamKey next = 1'000'000;
  return next++;
}
}  // namespace

TEST_CASE("operations of one stream are ordered, those of two streams only through clocks") {
  const StreamKey s = new_stream(), t = new_stream();
  Clock cs, ct;
  const OperationId a = order().add(s, cs, "a"), b = order().add(s, cs, "b");
  const OperationId c = order().add(t, ct, "c");
  CHECK(order().before(0, a));
  CHECK(order().before(a, a));
  CHECK(order().before(a, b));
  CHECK_FALSE(order().before(b, a));
  CHECK_FALSE(order().before(a, c));
  CHECK_FALSE(order().before(c, b));
  const Clock event = cs;  // recorded after b
  const OperationId later = order().add(s, cs, "later");
  join(ct, event);
  const OperationId d = order().add(t, ct, "d");
  CHECK(order().before(a, d));
  CHECK(order().before(b, d));
  CHECK_FALSE(order().before(later, d));
  CHECK_FALSE(order().before(d, later));
  CHECK_FALSE(order().before(b, c));
}

TEST_CASE("order goes through a third stream") {
  const StreamKey s = new_stream(), t = new_stream(), u = new_stream();
  Clock cs, ct, cu;
  const OperationId a = order().add(s, cs, "a");
  join(ct, cs);
  order().add(t, ct, "b");
  join(cu, ct);
  const OperationId c = order().add(u, cu, "c");
  CHECK(order().before(a, c));
  CHECK(order().stream_of(c) == u);
}

TEST_CASE("descriptions") {
  const StreamKey s = new_stream();
  Clock cs, host;
  const OperationId a = order().add(s, cs, "kernel");
  order().set_description(a, "kernel saxpy");
  CHECK(order().describe(a) == "kernel saxpy in stream " + std::to_string(s));
  CHECK(order().describe(order().add(0, host, "cudaFree")) == "cudaFree by the host");
  CHECK(order().describe(0) == "the start of the program");
}

TEST_CASE("readers of several streams are one identifier that comes before what all come before") {
  const StreamKey s = new_stream(), t = new_stream(), u = new_stream();
  Clock cs, ct, cu;
  const OperationId a = order().add(s, cs, "a"), b = order().add(t, ct, "b"), c = order().add(u, cu, "c");
  const OperationId ab = order().both(a, b);
  CHECK(order().both(a, b) == ab);
  CHECK(order().both(ab, b) == ab);
  CHECK(order().both(ab, a) == ab);
  const OperationId abc = order().both(ab, c);
  join(cs, ct);
  const OperationId after_ab = order().add(s, cs, "after a and b");
  CHECK(order().before(ab, after_ab));
  CHECK_FALSE(order().before(abc, after_ab));
  join(cs, cu);
  CHECK(order().before(abc, order().add(s, cs, "after all")));
  CHECK(order().both(ab, after_ab) == after_ab);
  CHECK(order().both(a, a) == a);
  CHECK(order().describe(ab) == order().describe(a) + " and " + order().describe(b));
}
