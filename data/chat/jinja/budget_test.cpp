#include "data/chat/jinja/budget.h"

#include <doctest/doctest.h>

#include <chrono>
#include <future>

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

}  // namespace
