#include "ops/bench.h"

#include <algorithm>

namespace nemocube {
namespace {
std::vector<BenchEntry>& entries() {
  static std::vector<BenchEntry> list;
  return list;
}
}  // namespace

RegisterBench::RegisterBench(std::string op, BenchMaker make) {
  auto& list = entries();
  const auto at = std::ranges::lower_bound(list, op, {}, &BenchEntry::op);
  list.insert(at, BenchEntry{std::move(op), std::move(make)});
}

const std::vector<BenchEntry>& bench_entries() { return entries(); }

}  // namespace nemocube
