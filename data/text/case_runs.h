#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

namespace nemocube {

/// A row of the tables of letter case: each of the code points first, first + step, ..., last changes to the
/// code point `offset` further on.
struct CaseRun {
  char32_t first, last;
  std::uint32_t step;
  std::int32_t offset;
};

/// `character` in the other case; itself where no run has it. pre: `runs` ascend and do not overlap
constexpr char32_t in_other_case(std::span<const CaseRun> runs, char32_t character) {
  const auto after = std::ranges::upper_bound(runs, character, {}, &CaseRun::first);
  if (after == runs.begin()) return character;
  const CaseRun& run = *(after - 1);
  if (character > run.last || (character - run.first) % run.step != 0) return character;
  return static_cast<char32_t>(static_cast<std::int32_t>(character) + run.offset);
}

}  // namespace nemocube
