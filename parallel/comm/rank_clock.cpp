#include "parallel/comm/rank_clock.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/trace.h"

namespace nemocube {
namespace {

using Times = std::array<std::int64_t, 2>;

void answer(Communicator& all, int rank, int rounds) {
  std::int64_t question = 0;
  for (int i = 0; i < rounds; ++i) {
    all.exchange({}, {{comm_detail::values_on_host(std::span(&question, 1)), rank}});
    Times times{trace::now(), 0};
    times[1] = trace::now();
    all.exchange({{comm_detail::values_on_host(std::span<std::int64_t>(times)), rank}}, {});
  }
}

ClockReading ask(Communicator& all, int rounds) {
  ClockReading best;
  best.uncertainty = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < rounds; ++i) {
    Times there{};
    std::int64_t question = i;
    const std::int64_t sent = trace::now();
    all.exchange({{comm_detail::values_on_host(std::span(&question, 1)), 0}}, {});
    all.exchange({}, {{comm_detail::values_on_host(std::span<std::int64_t>(there)), 0}});
    const ClockReading round = reading_of_round(sent, there[0], there[1], trace::now());
    if (round.uncertainty < best.uncertainty) best = round;
  }
  return best;
}

// The same reading where the other one contradicts it: then the clocks drift more.
ClockReading narrowed(const ClockReading& reading, const ClockReading& other) {
  constexpr double most_drift = 1e-4;
  const std::int64_t drift =
      std::llround(most_drift * std::abs(static_cast<double>(reading.time - other.time)));
  const std::int64_t low = std::max(reading.offset - reading.uncertainty,
                                    other.offset - other.uncertainty - drift),
                     high = std::min(reading.offset + reading.uncertainty,
                                     other.offset + other.uncertainty + drift);
  if (low > high) return reading;
  return {reading.time, low + (high - low) / 2, (high - low + 1) / 2};
}

}  // namespace

ClockReading reading_of_round(std::int64_t t0, std::int64_t t1, std::int64_t t2, std::int64_t t3) {
  return {t0 + (t3 - t0) / 2, ((t1 - t0) + (t2 - t3)) / 2, ((t3 - t0) - (t2 - t1)) / 2 + 1};
}

ClockReading read_clock_of_rank_0(Communicator& all, int rounds) {
  expect(rounds > 0, "a clock read in ", rounds, " rounds");
  if (all.rank() > 0) return ask(all, rounds);
  for (int rank = 1; rank < all.size(); ++rank) answer(all, rank, rounds);
  return {.time = trace::now()};
}

RankClock::RankClock(const ClockReading& first, const ClockReading& second)
    : first_(narrowed(first, second)) {
  const ClockReading last = narrowed(second, first);
  uncertainty_ = std::max(first_.uncertainty, last.uncertainty);
  if (last.time > first_.time)
    drift_ = static_cast<double>(last.offset - first_.offset) / static_cast<double>(last.time - first_.time);
}

std::int64_t RankClock::on_rank_0(std::int64_t time) const {
  return time + first_.offset + std::llround(drift_ * static_cast<double>(time - first_.time));
}

}  // namespace nemocube
