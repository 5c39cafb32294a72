#include "core/trace.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "core/allocation_owner.h"
#include "core/autograd.h"
#include "core/profile.h"

using namespace nemocube;
using trace::Category;

namespace {

trace::Recorded recorded(const auto& work, std::int64_t most_events = trace::default_most_events) {
  trace::start(most_events);
  work();
  trace::stop();
  return trace::take();
}

std::vector<std::string> names(const trace::Recorded& all) {
  std::vector<std::string> list;
  for (const trace::Event& e : all.events) list.emplace_back(e.name);
  return list;
}

bool within(const trace::Event& inner, const trace::Event& outer) {
  return inner.begin >= outer.begin && inner.begin + inner.duration <= outer.begin + outer.duration;
}

}  // namespace

TEST_CASE("trace: spans and zones of a thread, the outer ones first, and nothing while nothing is recorded") {
  static Zone zone("test of traces"), hidden("test of traces, hidden", false);
  const auto work = [&] {
    const trace::Span outer(Category::step, "outer", {{"step", 7}, {"share", 0.5}, {"group", "dp"}});
    { const ZoneTimer timer(zone); }
    const ZoneTimer timer(hidden);
    const trace::Span inner(Category::data, "inner");
  };
  work();
  const trace::Recorded all = recorded(work);
  work();
  REQUIRE(names(all) == std::vector<std::string>{"outer", "test of traces", "inner"});
  CHECK(all.dropped == 0);
  CHECK(all.rows == std::map<trace::Row, std::string>{{trace::compute_row, "compute"}});
  const trace::Event &outer = all.events[0], &operation = all.events[1], &inner = all.events[2];
  CHECK(outer.category == Category::step);
  CHECK(operation.category == Category::operation);
  CHECK(within(operation, outer));
  CHECK(within(inner, outer));
  CHECK(operation.begin + operation.duration <= inner.begin);
  CHECK(outer.arguments[0].key == std::string("step"));
  CHECK(std::get<std::int64_t>(outer.arguments[0].value) == 7);
  CHECK(std::get<double>(outer.arguments[1].value) == 0.5);
  CHECK(std::get<const char*>(outer.arguments[2].value) == std::string("dp"));
  CHECK(outer.arguments[3].key == nullptr);
  CHECK(zone.calls() == 3);
  CHECK(hidden.calls() == 3);
}

TEST_CASE("trace: what was begun before it, or ends after it, is no part") {
  std::optional<trace::Span> before(std::in_place, Category::step, "before");
  std::optional<trace::Span> after;
  const trace::Recorded all = recorded([&] {
    trace::record({.name = "old", .begin = trace::now() - 1'000'000'000, .duration = 1});
    before.reset();
    after.emplace(Category::step, "after");
  });
  after.reset();
  CHECK(all.events.empty());
  CHECK(recorded([] {}).events.empty());
}

TEST_CASE("trace: threads have rows of their own, and an event may name another") {
  const trace::Recorded all = recorded([] {
    const trace::Span here(Category::step, "here");
    std::thread([] {
      const trace::Span there(Category::data, "there");
      trace::record({.name = "sent",
                     .begin = trace::now(),
                     .category = Category::collective,
                     .row = trace::collective_row});
    }).join();
  });
  REQUIRE(names(all) == std::vector<std::string>{"here", "sent", "there"});
  CHECK(all.events[0].row == trace::compute_row);
  CHECK(all.events[1].row == trace::collective_row);
  CHECK(all.events[2].row >= trace::first_thread_row);
  CHECK(all.rows.at(trace::collective_row) == "collectives");
  CHECK(all.rows.size() == 3);
}

TEST_CASE("trace: memory is bounded, and what has no room is counted") {
  const auto many = [](int count) {
    for (int i = 0; i < count; ++i) trace::record({.name = "event", .begin = trace::now()});
  };
  const trace::Recorded all = recorded(
      [&] {
        many(3000);
        std::thread([&] { many(3000); }).join();
      },
      4096);
  // Four pieces of 1024 events: three are the first thread's, which fills them not quite.
  CHECK(std::ssize(all.events) == 3000 + 1024);
  CHECK(all.dropped == 3000 - 1024);
  const trace::Recorded again = recorded([&] { many(10); });
  CHECK(std::ssize(again.events) == 10);
  CHECK(again.dropped == 0);
}

TEST_CASE("trace: stop waits for threads that append, take sees whole events") {
  std::atomic<bool> ending = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      while (!ending)
        for (int i = 0; i < 100; ++i) trace::record({.name = "event", .begin = trace::now(), .duration = 5});
    });
  for (int round = 0; round < 20; ++round) {
    const trace::Recorded all = recorded([] { std::this_thread::yield(); }, 8192);
    CHECK(std::ranges::all_of(all.events, [](const trace::Event& e) {
      return e.duration == 5 && e.row >= trace::first_thread_row;
    }));
  }
  ending = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("trace: a second start, and events of a trace that goes on, are broken promises") {
  trace::start();
  CHECK_THROWS_AS(trace::start(), std::logic_error);
  CHECK_THROWS_AS(trace::take(), std::logic_error);
  trace::stop();
  trace::take();
}

TEST_CASE("trace: the backward pass is cut into the blocks whose closures it runs") {
  Tape tape;
  static Zone zone("test of traces, closure");
  const auto record = [&](const char* owner, int closures) {
    const AllocationOwner block(owner);
    for (int i = 0; i < closures; ++i)
      tape.record("closure", [&tape] {
        const ZoneTimer timer(zone);
        tape.weight_work([] { const ZoneTimer of_weights(zone); });
      });
  };
  record("block 0", 2);
  record("block 1", 3);
  // As of an activation checkpoint: what runs within a closure is no block of its own.
  tape.record("closure without owner", [&] {
    Tape replayed(&tape);
    const AllocationOwner block("replayed block");
    replayed.record("closure", [] {});
    replayed.backward(std::span<const Var>(), std::span<const Tensor>());
  });
  tape.defer_weight_work();
  const Var result = Var::leaf(Tensor::scalar(1, DType::f32, Device::cpu));  // core alone
  const trace::Recorded all = recorded([&] {
    tape.backward(result, Tensor::scalar(1, DType::f32, Device::cpu));  // core alone
    tape.run_weight_work();
  });
  std::vector<std::pair<std::string, std::int64_t>> blocks;  // with the operations within
  for (const trace::Event& block : all.events)
    if (block.category == Category::backward)
      blocks.emplace_back(block.name, std::ranges::count_if(all.events, [&](const trace::Event& e) {
                            return e.category == Category::operation && within(e, block);
                          }));
  CHECK(blocks == std::vector<std::pair<std::string, std::int64_t>>{
                      {"block 1", 3}, {"block 0", 2}, {"block 1", 3}, {"block 0", 2}});
}
