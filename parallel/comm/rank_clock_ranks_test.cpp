#include "parallel/comm/rank_clock.h"

#include <doctest/doctest.h>

#include <cstdlib>

#include "core/trace.h"
#include "tests/support/ranks.h"

using namespace nemocube;
using namespace nemocube::testing;

// The ranks of the tests are on one machine, whose steady clock is one for all processes.
TEST_CASE("rank clock: ranks of one machine find that their clocks agree, within the uncertainty") {
  Communicator& all = test_world().communicator();
  for (const int rounds : {1, 21}) {
    CAPTURE(rounds);
    const std::int64_t before = trace::now();
    const ClockReading reading = read_clock_of_rank_0(all, rounds);
    CHECK(reading.time >= before);
    CHECK(reading.time <= trace::now());
    CHECK(std::abs(reading.offset) <= reading.uncertainty);
    CHECK((reading.uncertainty > 0) == (all.rank() > 0));
  }
}

TEST_CASE("collectives: a trace has every call with its group, number and the bytes of the statistics") {
  World& world = test_world();
  if (world.size() == 1) return;  // a group of one moves nothing
  const auto group = world.split("traced", 0, world.rank());
  const Tensor t = Tensor::zeros({5000}, DType::f32, Device::cpu);  // MPI messages
  group->all_reduce(t);                                             // before the trace
  const CommStats before = group->stats(Operation::all_reduce);
  world.communicator().host_barrier();
  trace::start();
  group->all_reduce(t);
  Work work = group->start_all_reduce(t);
  group->all_reduce(t);
  work.wait();
  trace::stop();
  const CommStats after = group->stats(Operation::all_reduce);
  const trace::Recorded recorded = trace::take();
  std::int64_t calls = 0, bytes = 0, end = 0;
  double waiting = 0, seconds = 0;
  for (const trace::Event& e : recorded.events) {
    if (e.category != trace::Category::collective) continue;
    CHECK(e.name == std::string("all_reduce"));
    CHECK(e.row == trace::collective_row);
    CHECK(e.begin >= end);  // one after another
    end = e.begin + e.duration;
    bytes += std::get<std::int64_t>(e.arguments[0].value);
    CHECK(std::get<const char*>(e.arguments[1].value) == std::string("traced"));
    CHECK(std::get<std::int64_t>(e.arguments[2].value) == ++calls);  // the one before the trace has number 0
    waiting += std::get<double>(e.arguments[3].value);
    seconds += static_cast<double>(e.duration) * 1e-9;
  }
  CHECK(calls == 3);
  CHECK(bytes == after.bytes_sent - before.bytes_sent);
  CHECK(bytes > 0);
  CHECK(waiting == doctest::Approx(after.waiting_seconds - before.waiting_seconds));
  CHECK(seconds == doctest::Approx(after.seconds - before.seconds));
}
