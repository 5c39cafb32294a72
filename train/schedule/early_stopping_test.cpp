#include "train/schedule/early_stopping.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace nemocube;

namespace {

EarlyStoppingSection section_of(std::int64_t patience, double min_delta = 0) {
  return {.patience = patience, .min_delta = min_delta, .metric = "default"};
}

/// The number of validations, at steps 9, 19, ..., after which a run with these losses ends; 0: it does not.
std::size_t ends_after(const EarlyStoppingSection& section, const std::vector<double>& losses,
                       std::optional<EarlyStoppingState>* last = nullptr) {
  std::optional<EarlyStoppingState> state;
  std::size_t end = 0;
  for (std::size_t i = 0; i < losses.size() && end == 0; ++i) {
    state = counted_validation(state, section, static_cast<std::int64_t>(10 * i + 9), losses[i]);
    if (has_ended(state, section)) end = i + 1;
  }
  if (last) *last = state;
  return end;
}

const double not_a_number = std::nan("");

}  // namespace

TEST_CASE(
    "early stopping: a run ends after as many validations in a row without a lower loss as its patience") {
  CHECK_FALSE(has_ended({}, section_of(1)));
  CHECK(ends_after(section_of(1), {3, 2, 1}) == 0);
  CHECK(ends_after(section_of(1), {3, 2, 2, 1}) == 3);  // an equal loss is not lower
  CHECK(ends_after(section_of(2), {3, 2, 2.5, 1, 1, 0.5, 0.6, 0.7}) == 8);
  CHECK(ends_after(section_of(3), {3, 2, 2.5, 2.4, 1.9, 2, 2, 2}) == 8);
  CHECK(ends_after(section_of(3), {1, 2, 3, 4}) == 4);
}

TEST_CASE("early stopping: a loss is lower by more than min_delta than the best one so far") {
  CHECK(ends_after(section_of(2, 0.5), {3, 2.75, 2.5}) == 3);
  CHECK(ends_after(section_of(2, 0.5), {3, 2.75, 2.25, 2.0, 1.75}) == 5);
  std::optional<EarlyStoppingState> state;
  CHECK(ends_after(section_of(9, 0.5), {3, 2.75, 2.25, 2.0}, &state) == 0);
  CHECK(*state == EarlyStoppingState{
                      .metric = "default", .best_loss = 2.25, .best_step = 29, .waited = 1, .last_step = 39});
}

TEST_CASE("early stopping: a loss that is not finite is no lower one") {
  CHECK(ends_after(section_of(2), {not_a_number, not_a_number}) == 2);
  CHECK(ends_after(section_of(2), {not_a_number, 5, not_a_number, -HUGE_VAL}) == 4);
  CHECK(ends_after(section_of(2), {not_a_number, HUGE_VAL}) == 2);
  CHECK(ends_after(section_of(2), {3, not_a_number, 2, not_a_number, 1}) == 0);
}

TEST_CASE("early stopping: a step counts once, and another metric begins anew") {
  const EarlyStoppingSection section = section_of(2);
  EarlyStoppingState state = counted_validation({}, section, 9, 3);
  state = counted_validation(state, section, 19, 4);
  CHECK(counted_validation(state, section, 19, 1) == state);
  CHECK(counted_validation(state, section, 9, 1) == state);
  EarlyStoppingSection other = section;
  other.metric = "long";
  CHECK_FALSE(has_ended(counted_validation(state, section, 29, 4), other));
  CHECK(counted_validation(state, other, 19, 8) ==
        EarlyStoppingState{.metric = "long", .best_loss = 8, .best_step = 19, .waited = 0, .last_step = 19});
}

TEST_CASE("early stopping: the reason names the best loss and its step") {
  std::optional<EarlyStoppingState> state;
  ends_after(section_of(2, 0.5), {3, 2, 1.75, 1.5}, &state);
  CHECK(reason_of_end(*state, section_of(2, 0.5)) ==
        "the validation loss of 2 validations in a row was not below 2, that of step 19, by more than 0.5");
  ends_after(section_of(1), {3, 2, 4}, &state);
  state->metric = "long";
  CHECK(reason_of_end(*state, section_of(1)) ==
        "the validation loss of long of 1 validation was not below 2, that of step 19");
  ends_after(section_of(2), {not_a_number, not_a_number}, &state);
  CHECK(reason_of_end(*state, section_of(2)) ==
        "the validation loss of 2 validations in a row was not finite");
}
