#include "core/allocator.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/allocation_owner.h"
#include "core/cuda/module.h"
#include "core/memory_limit.h"
#include "core/profile.h"
#include "core/rng.h"
#include "core/sanitizers.h"
#include "core/tensor.h"
#include "tests/support/alone.h"

using namespace nemocube;

namespace {
constexpr std::int64_t mib = 1 << 20;
Allocator& cpu() { return allocator(Device::cpu); }
}  // namespace

TEST_CASE("allocator: counts, reuses and reports the peak") {
  cpu().release_cache();
  const auto start = cpu().stats();
  void* first = nullptr;
  {
    const Tensor a = Tensor::empty({1 << 20}, DType::f32, Device::cpu);
    first = a.address();
    CHECK(cpu().stats().current_bytes - start.current_bytes == 4 << 20);
  }
  CHECK(cpu().stats().current_bytes == start.current_bytes);
  CHECK(cpu().stats().peak_bytes >= start.current_bytes + (4 << 20));
  const Tensor again = Tensor::empty({1 << 20}, DType::f32, Device::cpu);
  CHECK(again.address() == first);
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
  cpu().reset_peak();
  CHECK(cpu().stats().peak_bytes == cpu().stats().current_bytes);
  CHECK(reinterpret_cast<std::uintptr_t>(again.address()) % 64 == 0);
  CHECK_THROWS_AS(Tensor::empty({std::int64_t{1} << 50}, DType::u8, Device::cpu), Error);
}

TEST_CASE("allocator: a freed block serves the same size and somewhat smaller ones, and keeps its own") {
  cpu().release_cache();
  const MemoryStats before = cpu().stats();
  const MemoryBlock block = cpu().allocate(6 * mib);
  CHECK(reinterpret_cast<std::uintptr_t>(block.data) % 64 == 0);
  cpu().free(block);
  const MemoryBlock smaller = cpu().allocate(5 * mib);
  CHECK(smaller.data == block.data);
  CHECK(smaller.bytes == 6 * mib);
  CHECK_FALSE(smaller.zeros);
  CHECK(cpu().stats().current_bytes - before.current_bytes == 6 * mib);
  const MemoryBlock other = cpu().allocate(3 * mib);  // less than two thirds: a block of its own
  CHECK(other.data != block.data);
  cpu().free(other);
  cpu().free(smaller);
  const MemoryBlock again = cpu().allocate(6 * mib);
  CHECK(again.data == block.data);
  cpu().free(again);
  CHECK(cpu().stats().current_bytes == before.current_bytes);
  CHECK(cpu().stats().reserved_bytes - before.reserved_bytes == 9 * mib);
  cpu().release_cache();
  CHECK(cpu().stats().reserved_bytes == cpu().stats().current_bytes);
}

TEST_CASE("allocator: ragged sizes do not pile up") {
  if (!testing::alone()) return;
  cpu().release_cache();
  cpu().reset_peak();
  std::vector<MemoryBlock> live(8);
  const RandomStream random(7, "allocator");
  for (std::uint64_t i = 0; i < 400; ++i) {
    MemoryBlock& l = live[i % live.size()];
    const auto bytes = [&l] { return static_cast<unsigned char*>(l.data); };
    if (l.data) {
      CHECK(bytes()[0] == i % live.size());
      CHECK(bytes()[l.bytes - 1] == i % live.size());
      cpu().free(l);
    }
    l = cpu().allocate(3 * mib +
                       static_cast<std::int64_t>(random.uniform(i) * 12 * static_cast<double>(mib)));
    bytes()[0] = bytes()[l.bytes - 1] = static_cast<unsigned char>(i % live.size());
    const MemoryStats now = cpu().stats();
    CHECK(now.reserved_bytes >= now.current_bytes);
    if (i >= 100) CHECK(now.reserved_bytes <= most_cpu_reserved(now.peak_bytes));
  }
  for (const MemoryBlock& l : live) cpu().free(l);
}

TEST_CASE(
    "allocator: blocks hold what was asked for and lose at most an eighth; the last freed comes first") {
  static_assert(noexcept(std::declval<Allocator&>().free(MemoryBlock())));
  cpu().release_cache();
  const MemoryStats before = cpu().stats();
  for (std::int64_t bytes = 1; bytes < 64 * mib; bytes += 1 + bytes / 7) {
    CAPTURE(bytes);
    const MemoryBlock first = cpu().allocate(bytes), second = cpu().allocate(bytes);
    CHECK(first.bytes >= bytes);
    CHECK((first.bytes < 64 + bytes || first.bytes * 8 <= bytes * 9));
    cpu().free(first);
    cpu().free(second);
    const MemoryBlock again = cpu().allocate(bytes);
    CHECK(again.data == second.data);
    cpu().free(again);
    cpu().release_cache();
    CHECK(cpu().stats().reserved_bytes == before.current_bytes);
  }
  CHECK(cpu().allocate(0).data == nullptr);
}

TEST_CASE("allocator: a device without memory is refused") {
  CHECK_THROWS_AS(allocator(Device::meta), std::logic_error);
  if (cuda::unavailable().empty()) return;
  CHECK_THROWS_WITH_AS(Tensor::zeros({3}, DType::f32, Device::cuda),
                       cat("device cuda: ", cuda::unavailable()).c_str(), Error);
}

TEST_CASE("allocator: out of memory says what was wanted and what is held") {
  const Tensor held = Tensor::empty({2 * mib}, DType::u8, Device::cpu);
  for (const std::int64_t bytes :
       {std::int64_t{1} << 50, std::int64_t{1} << 62, (std::int64_t{1} << 62) + 1}) {
    std::string text;
    try {
      cpu().allocate(bytes);
    } catch (const Error& e) {
      text = e.what();
    }
    CAPTURE(text);
    CHECK(text.starts_with("out of memory: a tensor wants " + bytes_text(bytes) + "; tensors hold "));
    CHECK(text.find(" cached for reuse; the limit is ") != std::string::npos);
  }
}

TEST_CASE("allocator: without a name the operation owns what it allocates") {
  static Zone zone("test operation");
  const ZoneTimer timer(zone);
  const Tensor t = Tensor::empty({2 * mib}, DType::u8, Device::cpu);
  CHECK(memory_in_use().find("test operation 2.10 MB") != std::string::npos);
}

TEST_CASE("allocator: names of owners are kept once") {
  std::string text = "test block 7";
  const char* first = kept_name(text);
  text = "changed";
  CHECK(std::string_view(first) == "test block 7");
  CHECK(kept_name("test block 7") == first);
  OwnedBytes owned;
  CHECK(owned.largest() == "");
  for (int i = 0; i < 9; ++i) owned.add(kept_name(cat("owner ", i)), 9 - i);
  owned.add("none", 50);
  CHECK(owned.largest() ==
        " (owner 0 9 B, owner 1 8 B, owner 2 7 B, owner 3 6 B, owner 4 5 B, owner 5 4 B, others 56 B)");
}

TEST_CASE("allocator: headroom keeps tensors away while it lives") {
  std::thread other;
  std::atomic<bool> allocated = false;
  {
    const CpuHeadroom headroom("a test");
    other = std::thread([&allocated] {
      cpu().free(cpu().allocate(100));
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
  if (has_address_sanitizer()) {
    MESSAGE("skipped: AddressSanitizer holds more address space than any limit that could be set here");
    return;
  }
  if (!testing::alone()) return;
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
    cpu().allocate(100 * mib);
  } catch (const Error& e) {
    text = e.what();
  }
  setrlimit(RLIMIT_AS, &before);
  CHECK(with.bytes == static_cast<std::int64_t>(small.rlim_cur));
  CHECK(with.name == "address space, ulimit -v");
  CHECK(without.bytes > with.bytes);
  CHECK(text.find("; the limit is " + bytes_text(with.bytes) + " (address space, ulimit -v)") !=
        std::string::npos);
}
