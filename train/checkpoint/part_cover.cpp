#include "train/checkpoint/part_cover.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <queue>
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

// The runs of a part in ascending order. Few are held at a time: a part whose rows are cut has a run for
// each.
class RunsOfPart {
 public:
  RunsOfPart(const Shard& shard, std::size_t part)
      : all_(shard.global_shape()), kept_(shard.flat_range().value_or(Range{0, shard.numel()})), part_(part) {
    for (int d = 0; d < shard.global_shape().ndim(); ++d) {
      const auto& ranges = shard.ranges()[static_cast<std::size_t>(d)];
      if (ranges != std::vector{Range{0, shard.global_shape()[d]}}) all_ = all_.cut(d, ranges);
    }
  }
  std::optional<HeldRun> next() {
    if (at_ == runs_.size() && !read()) return std::nullopt;
    return runs_[at_++];
  }

 private:
  bool read() {
    constexpr std::int64_t at_once = 1 << 16;  // elements
    runs_.clear();
    at_ = 0;
    const std::int64_t begin = taken_, end = std::min(kept_.size(), taken_ + at_once);
    if (begin == end) return false;
    all_.flat({kept_.begin + begin, kept_.begin + end})
        .for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
          runs_.push_back({global, count, part_, begin + local});
        });
    taken_ = end;
    return !runs_.empty();
  }

  Shard all_;  // without the flat range
  Range kept_;
  std::size_t part_, at_ = 0;
  std::int64_t taken_ = 0;
  std::vector<HeldRun> runs_;
};

// Calls fn(run) for the runs of all parts in ascending order, until it returns false.
void for_each_run(const std::vector<StoredPart>& parts, const auto& fn) {
  std::vector<RunsOfPart> readers;
  const auto later = [](const HeldRun& a, const HeldRun& b) { return a.global > b.global; };
  std::priority_queue<HeldRun, std::vector<HeldRun>, decltype(later)> first(later);
  const auto take = [&](std::size_t part) {
    if (const auto run = readers[part].next()) first.push(*run);
  };
  for (std::size_t p = 0; p < parts.size(); ++p) {
    readers.emplace_back(parts[p].shard, p);
    take(p);
  }
  while (!first.empty()) {
    const HeldRun run = first.top();
    first.pop();
    if (!fn(run)) return;
    take(run.part);
  }
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
  std::string differs;
  for_each_run(parts, [&](const HeldRun& run) {
    if (run.global > covered) return false;
    std::erase_if(ahead, [&](const HeldRun& other) { return other.end() <= run.global; });
    for (const HeldRun& other : ahead)
      if (compare && !agree(parts, run, other)) {
        differs = cat(parts[other.part].at.file_name(), " and ", parts[run.part].at.file_name(),
                      " hold different values of elements that both have, from element ", run.global, " on");
        return false;
      }
    ahead.push_back(run);
    covered = std::max(covered, run.end());
    return true;
  });
  if (!differs.empty()) return differs;
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
