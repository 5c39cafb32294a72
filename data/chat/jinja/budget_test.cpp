#include "data/chat/jinja/budget.h"

#include <doctest/doctest.h>

#include <chrono>
#include <future>

#include "data/chat/jinja/value.h"

using namespace nemocube;
using jinja::Budget;
using jinja::Failure;
using jinja::Limits;

namespace {

const Limits small{.memory = 1000, .shared_memory = 100};

TEST_CASE("jinja budget: memory is counted, and what is given back stays counted") {
  Budget budget(small);
  for (int i = 0; i < 10; ++i) budget.spend_memory(100);
  CHECK_THROWS_WITH_AS(budget.spend_memory(1), "the template makes values of more than 1000 bytes", Failure);
}

TEST_CASE("jinja budget: of the renderings that take more than their share, one runs at a time") {
  auto first = std::make_unique<Budget>(small);
  first->spend_memory(101);
  Budget beside(small);
  beside.spend_memory(100);  // may run beside it
  std::future<void> second = std::async(std::launch::async, [] {
    Budget budget(small);
    budget.spend_memory(101);
  });
  CHECK(second.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  first->spend_memory(100);  // goes on without waiting
  first.reset();
  second.get();
}

TEST_CASE("jinja budget: keys made to collide spend what searching among them takes") {
  Limits limits;
  limits.steps = 2'000'000;
  Budget budget(limits);
  jinja::Mapping mapping;
  const auto fill = [&](jinja::Integer factor) {
    for (int i = 0; i < 20'000; ++i) mapping.set(jinja::Value(factor * i), jinja::Value(i), budget);
  };
  CHECK_NOTHROW(fill(1));
  CHECK(mapping.find(jinja::Value(19'999.0), budget)->integer() == 19'999);
  CHECK(mapping.find(jinja::Value(20'000), budget) == nullptr);
  CHECK(mapping.find_text("1", budget) == nullptr);
  CHECK_THROWS_WITH_AS(fill(jinja::Integer{1} << 64), "the template takes more than 2000000 steps", Failure);
}

}  // namespace
