#include "train/logging/records.h"

namespace nemocube {
namespace {

std::optional<double> count_per_second(std::int64_t count, double seconds) {
  if (!(seconds > 0)) return std::nullopt;
  return static_cast<double>(count) / seconds;
}

}  // namespace

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }

std::optional<double> TrainingRecord::per_second(std::int64_t count) const {
  return count_per_second(count, seconds);
}

std::optional<double> TrainingRecord::tokens_per_second_and_rank() const {
  return count_per_second(tokens, seconds * ranks);
}

}  // namespace nemocube
