#include "train/checkpoint/part_cover.h"

#include <algorithm>
#include <cstddef>
#include <span>

namespace nemocube {
namespace {

// Elements that are neighbours both in a part and in the global tensor.
struct HeldRun {
  std::int64_t global, count;
  std::size_t part;
  std::int64_t local;
  std::int64_t end() const { return global + count; }
};

std::vector<HeldRun> runs_of(const std::vector<StoredPart>& parts) {
  std::vector<HeldRun> runs;
  for (std::size_t p = 0; p < parts.size(); ++p)
    parts[p].shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
      runs.push_back({global, count, p, local});
    });
  std::ranges::sort(runs, {}, &HeldRun::global);
  return runs;
}

std::vector<std::byte> bytes_of(const StoredPart& part, const HeldRun& run, std::int64_t begin,
                                std::int64_t count) {
  const std::int64_t size = part.at.entry->bytes() / part.shard.numel();
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * size));
  part.at.file->read_bytes(*part.at.entry, (run.local + begin - run.global) * size, bytes);
  return bytes;
}

// Whether two runs have the same bits where both have elements.
bool agree(const std::vector<StoredPart>& parts, const HeldRun& a, const HeldRun& b) {
  constexpr std::int64_t at_once = 1 << 18;  // elements
  const std::int64_t end = std::min(a.end(), b.end());
  for (std::int64_t at = std::max(a.global, b.global); at < end; at += at_once) {
    const std::int64_t count = std::min(at_once, end - at);
    if (bytes_of(parts[a.part], a, at, count) != bytes_of(parts[b.part], b, at, count)) return false;
  }
  return true;
}

// Empty: none.
std::string fault_of(const StoredOptimizer::Entry& entry, bool compare) {
  const std::vector<StoredPart>& parts = entry.parts;
  std::vector<HeldRun> ahead;  // those that may reach into the next one
  std::int64_t covered = 0;
  for (const HeldRun& run : runs_of(parts)) {
    if (run.global > covered) break;
    std::erase_if(ahead, [&](const HeldRun& other) { return other.end() <= run.global; });
    if (compare)
      for (const HeldRun& other : ahead)
        if (!agree(parts, run, other))
          return cat(parts[other.part].at.file_name(), " and ", parts[run.part].at.file_name(),
                     " hold different values of elements that both have, from element ", run.global, " on");
    ahead.push_back(run);
    covered = std::max(covered, run.end());
  }
  const std::int64_t all = entry.shape.numel();
  return covered == all ? "" : cat("no file holds element ", covered, " of ", all);
}

}  // namespace

std::vector<std::string> cover_faults(const StoredOptimizer& stored, bool compare) {
  std::vector<std::string> faults;
  for (const auto& [name, entry] : stored.tensors())
    if (const std::string fault = fault_of(entry, compare); !fault.empty())
      faults.push_back(cat("'", name, "' ", entry.shape, ": ", fault));
  return faults;
}

}  // namespace nemocube
