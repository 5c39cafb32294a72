#include "core/allocator.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/memory_limit.h"
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
    const Tensor a = Tensor::empty({1 << 20}, DType::f32, Device::cpu);
    first = a.raw();
    CHECK(cpu_memory().current_bytes - start.current_bytes == 4 << 20);
  }
  CHECK(cpu_memory().current_bytes == start.current_bytes);
  CHECK(cpu_memory().peak_bytes >= start.current_bytes + (4 << 20));
  const Tensor again = Tensor::empty({1 << 20}, DType::f32, Device::cpu);
  CHECK(again.raw() == first);
  again.fill(7);
  {
    const Tensor large = Tensor::empty({3 << 20}, DType::f32, Device::cpu);
    large.fill(7);
  }
  const Tensor zeros = Tensor::zeros({3 << 20}, DType::f32, Device::cpu);  // the block that held sevens
  CHECK(zeros.row<float>(0)[0] == 0);
  CHECK(zeros.row<float>(0)[(3 << 20) - 1] == 0);
  const Tensor fresh = Tensor::zeros({3 << 20}, DType::f32, Device::cpu);
  CHECK(fresh.row<float>(0)[12345] == 0);
  reset_cpu_peak();
  CHECK(cpu_memory().peak_bytes == cpu_memory().current_bytes);
  CHECK(reinterpret_cast<std::uintptr_t>(again.raw()) % 64 == 0);
  CHECK_THROWS_AS(Tensor::empty({std::int64_t{1} << 50}, DType::u8, Device::cpu), Error);
}

TEST_CASE("allocator: a freed block serves the same size and somewhat smaller ones, and keeps its own") {
  release_cpu_cache();
  const MemoryStats before = cpu_memory();
  const CpuBlock block = cpu_allocate(6 * mib);
  CHECK(reinterpret_cast<std::uintptr_t>(block.data) % 64 == 0);
  cpu_free(block);
  const CpuBlock smaller = cpu_allocate(5 * mib);
  CHECK(smaller.data == block.data);
  CHECK(smaller.bytes == 6 * mib);
  CHECK_FALSE(smaller.zeros);
  CHECK(cpu_memory().current_bytes - before.current_bytes == 6 * mib);
  const CpuBlock other = cpu_allocate(3 * mib);  // less than two thirds: a block of its own
  CHECK(other.data != block.data);
  cpu_free(other);
  cpu_free(smaller);
  const CpuBlock again = cpu_allocate(6 * mib);
  CHECK(again.data == block.data);
  cpu_free(again);
  CHECK(cpu_memory().current_bytes == before.current_bytes);
  CHECK(cpu_memory().reserved_bytes - before.reserved_bytes == 9 * mib);
  release_cpu_cache();
  CHECK(cpu_memory().reserved_bytes == cpu_memory().current_bytes);
}

TEST_CASE("allocator: ragged sizes do not pile up") {
  release_cpu_cache();
  reset_cpu_peak();
  std::vector<CpuBlock> live(8);
  const RandomStream random(7, "allocator");
  for (std::uint64_t i = 0; i < 400; ++i) {
    CpuBlock& l = live[i % live.size()];
    const auto bytes = [&l] { return static_cast<unsigned char*>(l.data); };
    if (l.data) {
      CHECK(bytes()[0] == i % live.size());
      CHECK(bytes()[l.bytes - 1] == i % live.size());
      cpu_free(l);
    }
    l = cpu_allocate(3 * mib + static_cast<std::int64_t>(random.uniform(i) * 12 * static_cast<double>(mib)));
    bytes()[0] = bytes()[l.bytes - 1] = static_cast<unsigned char>(i % live.size());
    const MemoryStats now = cpu_memory();
    CHECK(now.reserved_bytes >= now.current_bytes);
    if (i >= 100) CHECK(now.reserved_bytes <= now.peak_bytes + now.peak_bytes / 4 + 32 * mib);
  }
  for (const CpuBlock& l : live) cpu_free(l);
}

TEST_CASE(
    "allocator: blocks hold what was asked for and lose at most an eighth; the last freed comes first") {
  static_assert(noexcept(cpu_free(CpuBlock())));
  release_cpu_cache();
  const MemoryStats before = cpu_memory();
  for (std::int64_t bytes = 1; bytes < 64 * mib; bytes += 1 + bytes / 7) {
    CAPTURE(bytes);
    const CpuBlock first = cpu_allocate(bytes), second = cpu_allocate(bytes);
    CHECK(first.bytes >= bytes);
    CHECK((first.bytes < 64 + bytes || first.bytes * 8 <= bytes * 9));
    cpu_free(first);
    cpu_free(second);
    const CpuBlock again = cpu_allocate(bytes);
    CHECK(again.data == second.data);
    cpu_free(again);
    release_cpu_cache();
    CHECK(cpu_memory().reserved_bytes == before.current_bytes);
  }
  CHECK(cpu_allocate(0).data == nullptr);
}

TEST_CASE("allocator: out of memory says what was wanted and what is held") {
  const Tensor held = Tensor::empty({2 * mib}, DType::u8, Device::cpu);
  for (const std::int64_t bytes :
       {std::int64_t{1} << 50, std::int64_t{1} << 62, (std::int64_t{1} << 62) + 1}) {
    std::string text;
    try {
      cpu_allocate(bytes);
    } catch (const Error& e) {
      text = e.what();
    }
    CAPTURE(text);
    CHECK(text.starts_with("out of memory: a tensor wants " + bytes_text(bytes) + "; tensors hold "));
    CHECK(text.find(" cached for reuse; the limit is ") != std::string::npos);
  }
}

TEST_CASE("allocator: headroom keeps tensors away while it lives") {
  std::thread other;
  std::atomic<bool> allocated = false;
  {
    const CpuHeadroom headroom("a test");
    other = std::thread([&allocated] {
      cpu_free(cpu_allocate(100));
      allocated = true;
    });
    CHECK_FALSE(allocated);
  }
  other.join();
  CHECK(allocated);
}

TEST_CASE("memory: sizes are written with three digits") {
  CHECK(bytes_text(0) == "0 B");
  CHECK(bytes_text(999) == "999 B");
  CHECK(bytes_text(1000) == "1.00 kB");
  CHECK(bytes_text(99'940) == "99.9 kB");
  CHECK(bytes_text(99'960) == "100 kB");
  CHECK(bytes_text(999'499) == "999 kB");
  CHECK(bytes_text(999'500) == "1.00 MB");
  CHECK(bytes_text(1'500'000'000) == "1.50 GB");
}

TEST_CASE("memory: the limit of the address space counts when it is the least") {
#if defined(__SANITIZE_ADDRESS__)
  MESSAGE("skipped: AddressSanitizer holds more address space than any limit that could be set here");
#else
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit small = before;
  small.rlim_cur = static_cast<rlim_t>(pages * 4096 + 64 * mib);
  const MemoryLimit without = memory_limit();
  REQUIRE(setrlimit(RLIMIT_AS, &small) == 0);
  const MemoryLimit with = memory_limit();
  std::string text;
  try {
    cpu_allocate(100 * mib);
  } catch (const Error& e) {
    text = e.what();
  }
  setrlimit(RLIMIT_AS, &before);
  CHECK(with.bytes == static_cast<std::int64_t>(small.rlim_cur));
  CHECK(with.name == "address space, ulimit -v");
  CHECK(without.bytes > with.bytes);
  CHECK(text.find("; the limit is " + bytes_text(with.bytes) + " (address space, ulimit -v)") !=
        std::string::npos);
#endif
}
