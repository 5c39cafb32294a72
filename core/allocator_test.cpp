#include "core/allocator.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "core/rng.h"
#include "core/tensor.h"

using namespace nemocube;

namespace {
constexpr std::int64_t mib = 1 << 20;
}

TEST_CASE("allocator: counts, reuses and reports the peak") {
  release_cpu_cache();
  const auto start = cpu_memory();
  void* first = nullptr;
  {
    const Tensor a = Tensor::empty({1 << 20}, DType::f32);
    first = a.raw();
    CHECK(cpu_memory().current_bytes - start.current_bytes == 4 << 20);
  }
  CHECK(cpu_memory().current_bytes == start.current_bytes);
  CHECK(cpu_memory().peak_bytes >= start.current_bytes + (4 << 20));
  const Tensor again = Tensor::empty({1 << 20}, DType::f32);
  CHECK(again.raw() == first);
  again.fill(7);
  {
    const Tensor large = Tensor::empty({3 << 20}, DType::f32);
    large.fill(7);
  }
  const Tensor zeros = Tensor::zeros({3 << 20}, DType::f32);  // the block that held sevens
  CHECK(zeros.row<float>(0)[0] == 0);
  CHECK(zeros.row<float>(0)[(3 << 20) - 1] == 0);
  const Tensor fresh = Tensor::zeros({3 << 20}, DType::f32);
  CHECK(fresh.row<float>(0)[12345] == 0);
  reset_cpu_peak();
  CHECK(cpu_memory().peak_bytes == cpu_memory().current_bytes);
  CHECK(reinterpret_cast<std::uintptr_t>(again.raw()) % 64 == 0);
  CHECK_THROWS_AS(Tensor::empty({std::int64_t{1} << 50}, DType::u8), Error);
}

TEST_CASE("allocator: a freed block serves the same size and somewhat smaller ones, and keeps its own") {
  release_cpu_cache();
  const MemoryStats before = cpu_memory();
  void* block = cpu_allocate(6 * mib);
  CHECK(reinterpret_cast<std::uintptr_t>(block) % 64 == 0);
  cpu_free(block, 6 * mib);
  void* smaller = cpu_allocate(5 * mib);
  CHECK(smaller == block);
  CHECK(cpu_memory().current_bytes - before.current_bytes == 6 * mib);
  void* other = cpu_allocate(3 * mib);  // less than two thirds: a block of its own
  CHECK(other != block);
  cpu_free(other, 3 * mib);
  cpu_free(smaller, 5 * mib);
  void* again = cpu_allocate(6 * mib);
  CHECK(again == block);
  cpu_free(again, 6 * mib);
  CHECK(cpu_memory().current_bytes == before.current_bytes);
  CHECK(cpu_memory().reserved_bytes - before.reserved_bytes == 9 * mib);
  release_cpu_cache();
  CHECK(cpu_memory().reserved_bytes == cpu_memory().current_bytes);
}

TEST_CASE("allocator: ragged sizes do not pile up") {
  release_cpu_cache();
  reset_cpu_peak();
  struct Live {
    unsigned char* block = nullptr;
    std::int64_t bytes = 0;
  };
  std::vector<Live> live(8);
  const RandomStream random(7, "allocator");
  for (std::uint64_t i = 0; i < 400; ++i) {
    Live& l = live[i % live.size()];
    if (l.block) {
      CHECK(l.block[0] == i % live.size());
      CHECK(l.block[l.bytes - 1] == i % live.size());
      cpu_free(l.block, l.bytes);
    }
    l.bytes = 3 * mib + static_cast<std::int64_t>(random.uniform(i) * 12 * static_cast<double>(mib));
    l.block = static_cast<unsigned char*>(cpu_allocate(l.bytes));
    l.block[0] = l.block[l.bytes - 1] = static_cast<unsigned char>(i % live.size());
    const MemoryStats now = cpu_memory();
    CHECK(now.reserved_bytes >= now.current_bytes);
    if (i >= 100) CHECK(now.reserved_bytes <= now.peak_bytes + now.peak_bytes / 4 + 32 * mib);
  }
  for (const Live& l : live) cpu_free(l.block, l.bytes);
}
