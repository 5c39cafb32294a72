#include <doctest/doctest.h>

#include <functional>
#include <future>
#include <stdexcept>
#include <string>

#include "parallel/comm/collective.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/job_queue.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

const Tensor three = Tensor::from<float>({1, 2, 3}, {3});

std::string broken_promise(const auto& fn) {
  try {
    fn();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("self: every operation copies what one rank keeps") {
  const auto self = self_communicator("tp", 5);
  CHECK(self->name() == "tp");
  CHECK(self->rank() == 0);
  CHECK(self->size() == 1);
  CHECK(self->members()[0] == 5);
  const std::vector<double> want{1, 2, 3};
  const Tensor t = three.clone(), out = Tensor::zeros({3}, DType::f32, Device::cpu);
  self->all_reduce(t);
  self->broadcast(t, 0);
  self->host_barrier();
  CHECK(t.to_vector() == want);
  self->all_gather(out, t);
  CHECK(out.to_vector() == want);
  out.zero();
  self->reduce_scatter(out, t, Reduction::max);
  CHECK(out.to_vector() == want);
  out.zero();
  Work work = self->start_exchange({{t, 0}}, {{out, 0}});
  CHECK(work.done());
  work.wait();
  CHECK(out.to_vector() == want);
  out.zero();
  const std::vector<std::int64_t> rows{3};
  self->all_to_all_v(out, rows, t, rows);
  CHECK(out.to_vector() == want);
  CHECK(self->stats(Operation::all_gather).calls == 1);
  CHECK(self->stats(Operation::all_gather).bytes_sent == 0);
}

TEST_CASE("communicator: calls that break the contract are refused before anything is sent") {
  const auto self = self_communicator("dp", 0);
  const Tensor out = Tensor::zeros({3}, DType::f32, Device::cpu),
               doubles = Tensor::zeros({3}, DType::f64, Device::cpu);
  const Tensor rows = Tensor::zeros({2, 4}, DType::f32, Device::cpu);
  const std::vector<std::int64_t> one{1}, two{2}, three_rows{3}, pair{1, 2};
  const std::vector<std::pair<std::function<void()>, const char*>> mistakes{
      {[&] { self->all_reduce(Tensor()); }, "all_reduce: inout has no memory"},
      {[&] { self->all_reduce(rows.narrow(1, 0, 2)); }, "inout of shape [2, 2] is not contiguous"},
      {[&] { self->all_gather(doubles, three); }, "all_gather: out is f64, in is f32"},
      {[&] { self->all_gather(rows, three); }, "all_gather: out has 8 elements, want 3"},
      {[&] { self->all_gather_v(out, three, two); }, "all_gather: in has 3 elements, want 2"},
      {[&] { self->all_gather_v(out, three, pair); }, "all_gather: 2 counts for 1 ranks"},
      {[&] { self->reduce_scatter(out, rows); }, "reduce_scatter: in has 8 elements, want 3"},
      {[&] { self->broadcast(out, 1); }, "broadcast: from rank 1 in a group of 1"},
      {[&] { self->all_to_all_v(out, one, three, one); }, "all_to_all: in has 3 elements, want 1"},
      {[&] { self->all_to_all_v(rows, two, three, three_rows); }, "want rows of the same size"},
      {[&] { self->all_to_all_v(three, three_rows, three, three_rows); }, "out and in overlap"},
      {[&] {
         self->exchange({{three, 0}}, {});
       },
       "sends itself other elements"},
      {[&] {
         self->exchange({{three, 2}}, {});
       },
       "exchange: to rank 2 in a group of 1"},
      {[&] {
         self->exchange({{out, 0}}, {{out, 0}});
       },
       "exchange: out and in overlap"},
  };
  for (const auto& [mistake, text] : mistakes) {
    const std::string found = broken_promise(mistake);
    CAPTURE(found);
    CHECK(found.find(text) != std::string::npos);
  }
  const Tensor long_one = Tensor::zeros({4}, DType::f32, Device::cpu);
  CHECK(broken_promise([&] { self->all_gather(long_one.narrow(0, 0, 3), long_one.narrow(0, 1, 3)); }) ==
        "internal error: all_gather: out and in overlap");
  CHECK(self->stats(Operation::exchange).calls == 0);
}

TEST_CASE("collective: the text says what ranks must agree on") {
  Collective c;
  c.operation = Operation::reduce_scatter;
  c.number = 7;
  c.dtype = DType::bf16;
  c.in_counts = {1, 2, 3};
  CHECK(describe(c) == "reduce_scatter number 7 (sum, bf16, 1 + 2 + 3 elements)");
  c.operation = Operation::all_gather;
  c.out_counts.assign(10, 5);
  CHECK(describe(c) == "all_gather number 7 (bf16, 5 + 5 + 5 + 5 + 5 + 5 + 5 + 5 + ... = 50 elements)");
  c.operation = Operation::barrier;
  CHECK(describe(c) == "barrier number 7");
}

TEST_CASE("queue: first in, first out; after a failure everything throws the same") {
  std::string order;
  JobQueue queue("jobs");
  queue.run([&] { order += 'a'; });
  Work b = queue.start([&] { order += 'b'; });
  Work c = queue.start([&] { order += 'c'; });
  queue.run([&] { order += 'd'; });
  CHECK(order == "abcd");
  b.wait();
  CHECK(b.done());
  std::promise<void> all_started;
  Work failing = queue.start([&] {
    all_started.get_future().wait();
    fail("rank 3 has not come");
  });
  Work behind = queue.start([&] { order += 'x'; });
  all_started.set_value();
  CHECK(message_of([&] { behind.wait(); }) == "rank 3 has not come");
  CHECK(message_of([&] { failing.wait(); }) == "rank 3 has not come");
  CHECK(message_of([&] { queue.run([&] { order += 'y'; }); }) == "rank 3 has not come");
  CHECK(message_of([&] { static_cast<void>(queue.start([&] { order += 'z'; })); }) == "rank 3 has not come");
  CHECK(order == "abcd");
}
