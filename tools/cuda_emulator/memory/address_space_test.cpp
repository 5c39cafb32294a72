#include "memory/address_space.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

using namespace emulator;

namespace {

AddressSpace& space() { return AddressSpace::instance(); }

Allocation& allocate(std::uint64_t bytes, AllocationKind kind = AllocationKind::device) {
  Allocation* a = space().allocate(kind, 0, bytes, "cudaMalloc");
  REQUIRE(a);
  return *a;
}

std::uint32_t word_at(std::uint64_t address) {
  const Translation t = space().translate(address, 4);
  REQUIRE(t.host);
  std::uint32_t word;
  std::memcpy(&word, t.host, 4);
  return word;
}

std::string allocation_name(const Allocation& a) {
  return "allocation " + std::to_string(a.number) + " (cudaMalloc, " + std::to_string(a.bytes) + " bytes)";
}

}  // namespace

TEST_CASE("allocations are aligned, apart, and found by every address they hold") {
  Allocation& a = allocate(1000);
  Allocation& b = allocate(1);
  CHECK(a.begin % 512 == 0);
  CHECK(b.begin % 512 == 0);
  CHECK((b.begin >= a.begin + 1000 + 512 || a.begin >= b.begin + 1 + 512));
  CHECK(space().find(a.begin) == &a);
  CHECK(space().find(a.begin + 999) == &a);
  CHECK(space().find(a.begin + 1000) == nullptr);
  CHECK(space().starting_at(b.begin) == &b);
  CHECK(space().starting_at(a.begin + 1) == nullptr);
  CHECK(space().translate(a.begin, 1000).host);
  CHECK(space().holds(a.begin, 1000));
  CHECK(space().holds(a.begin + 999, 1));
  CHECK_FALSE(space().holds(a.begin + 990, 11));
  CHECK_FALSE(space().holds(a.begin + 1000, 1));
  const Translation over = space().translate(a.begin + 990, 11);
  CHECK(over.host == nullptr);
  CHECK(over.allocation == &a);
  CHECK_FALSE(over.after_free);
  space().free(a);
  CHECK(space().find(a.begin) == nullptr);
  CHECK_FALSE(space().holds(a.begin, 4));
  CHECK(space().translate(a.begin, 4).after_free);
  CHECK(space().translate(a.begin, 4).host == nullptr);
  space().free(b);
}

TEST_CASE("messages name the nearest allocation") {
  Allocation& a = allocate(1024);
  const std::string name = allocation_name(a);
  CHECK(space().describe(a.begin + 16) == "byte 16 of " + name);
  CHECK(space().describe(a.begin + 1036) == "12 bytes past the end of " + name);
  CHECK(space().describe(a.begin + 1020, 16) == "byte 1020 of " + name + ", 12 of 16 bytes lie past its end");
  space().free(a);
  CHECK(space().describe(a.begin + 16) == "byte 16 of " + name + ", which was freed");
}

TEST_CASE("memory reads as NaN pattern before its first write and after a free") {
  for (const std::uint64_t bytes : {std::uint64_t{64}, std::uint64_t{5} << 20}) {
    Allocation& a = allocate(bytes);
    CHECK(word_at(a.begin) == AddressSpace::fill_pattern);
    CHECK(word_at(a.begin + bytes - 4) == AddressSpace::fill_pattern);
    std::byte* host = space().translate(a.begin, bytes).host;
    std::memset(host, 1, bytes);
    space().mark_initialised(a.begin, bytes);
    CHECK(word_at(a.begin + bytes / 2 / 4 * 4) == 0x01010101);
    // Nothing else may have been given the range: its contents are looked at where they were.
    space().free(a);
    CHECK(space().first_uninitialised(a.begin, bytes) == a.begin);
    Granule* g = space().granule(a.begin + bytes / 2, true);
    REQUIRE(g);
    std::uint32_t word;
    std::memcpy(&word, host + bytes / 2 / 4 * 4, 4);
    CHECK(word == AddressSpace::fill_pattern);
  }
}

TEST_CASE("marks of written bytes are kept for each byte and carried over by copies at any alignment") {
  constexpr std::uint64_t size = 200'000;
  Allocation& a = allocate(size);
  Allocation& b = allocate(size);
  CHECK(space().first_uninitialised(a.begin, size) == a.begin);
  space().mark_initialised(a.begin + 3, 130'000);
  CHECK(space().first_uninitialised(a.begin, 4) == a.begin);
  CHECK_FALSE(space().first_uninitialised(a.begin + 3, 130'000));
  CHECK(space().first_uninitialised(a.begin + 3, 130'001) == a.begin + 130'003);

  space().mark_initialised(b.begin, size);
  space().copy_initialised(b.begin + 77, a.begin + 1, 140'000);
  CHECK_FALSE(space().first_uninitialised(b.begin, 77));
  CHECK(space().first_uninitialised(b.begin, size) == b.begin + 77);
  CHECK(space().first_uninitialised(b.begin + 78, size - 78) == b.begin + 78);
  CHECK_FALSE(space().first_uninitialised(b.begin + 79, 130'000));
  CHECK(space().first_uninitialised(b.begin + 79, 130'001) == b.begin + 79 + 130'000);
  CHECK_FALSE(space().first_uninitialised(b.begin + 77 + 140'000, size - 77 - 140'000));
  space().free(a);
  space().free(b);
}

TEST_CASE("host memory is used at its own address and forgotten at once") {
  std::vector<int> host(100);
  Allocation* a = space().add_host(AllocationKind::pinned_host, host.data(), 400, "cudaMallocHost");
  const std::uint64_t address = reinterpret_cast<std::uint64_t>(host.data());
  CHECK(space().translate(address + 4, 8).host == reinterpret_cast<std::byte*>(host.data() + 1));
  CHECK(space().granule(address, true) == nullptr);
  CHECK_FALSE(space().first_uninitialised(address, 400));
  space().free(*a);
  CHECK(space().find(address) == nullptr);
}

TEST_CASE("managed memory is used by the host at the same address") {
  Allocation& a = allocate(100'000, AllocationKind::managed);
  CHECK(space().translate(a.begin + 8, 4).host == reinterpret_cast<std::byte*>(a.begin + 8));
  CHECK(*reinterpret_cast<std::uint32_t*>(a.begin + 99'996) == AddressSpace::fill_pattern);
  CHECK_FALSE(space().first_uninitialised(a.begin, 100'000));
  *reinterpret_cast<std::uint32_t*>(a.begin) = 7;
  CHECK(word_at(a.begin) == 7);
  space().free(a);
}

TEST_CASE("translation cache: hits, fresh granules, several allocations, frees") {
  TranslationCache cache;
  Allocation& a = allocate(10 * Granule::bytes);
  Allocation& b = allocate(4096);
  std::vector<Allocation*> more;
  for (int i = 0; i < 6; ++i) more.push_back(&allocate(256));
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t at = 0; at < a.bytes; at += Granule::bytes / 2) {
      std::byte* host = cache.translate(a.begin + at, 16);
      REQUIRE(host);
      CHECK(host == space().translate(a.begin + at, 16).host);
      std::uint32_t word;
      std::memcpy(&word, host, 4);
      CHECK(word == AddressSpace::fill_pattern);
      CHECK(cache.translate(b.begin + 4080, 16) == space().translate(b.begin + 4080, 16).host);
      for (Allocation* m : more) CHECK(cache.translate(m->begin, 4) == space().translate(m->begin, 4).host);
    }
  }
  CHECK(cache.translate(b.begin + 4081, 16) == nullptr);
  CHECK(cache.translate(b.begin - 1, 1) == nullptr);
  CHECK(cache.translate(0, 4) == nullptr);
  CHECK(cache.translate(~std::uint64_t{0}, 4) == nullptr);
  space().free(b);
  cache.translate(a.begin, 4);
  cache.translate(more[0]->begin, 4);
  CHECK(cache.translate(b.begin, 4) == nullptr);
  space().free(a);
  for (Allocation* m : more) space().free(*m);
}

TEST_CASE("a full device refuses, and gives out freed ranges again, the oldest first") {
  // A device of its own; its memory is never touched.
  std::uint64_t free_bytes = 0, total = 0;
  space().usage(7, free_bytes, total);
  CHECK(free_bytes == total);
  std::vector<Allocation*> parts;
  const std::uint64_t part = total / 4;
  for (int i = 0; i < 4; ++i)
    parts.push_back(space().allocate(AllocationKind::device, 7, part, "cudaMalloc"));
  for (Allocation* p : parts) REQUIRE(p);
  CHECK(space().allocate(AllocationKind::device, 7, part, "cudaMalloc") == nullptr);
  space().usage(7, free_bytes, total);
  CHECK(free_bytes < part);
  const std::uint64_t first = parts[2]->begin, second = parts[0]->begin;
  space().free(*parts[2]);
  space().free(*parts[0]);
  // A quarter more addresses than memory: one range was never used.
  Allocation* fresh = space().allocate(AllocationKind::device, 7, part, "cudaMalloc");
  REQUIRE(fresh);
  CHECK(fresh->begin > parts[3]->begin);
  Allocation* again = space().allocate(AllocationKind::device, 7, part, "cudaMalloc");
  REQUIRE(again);
  CHECK(again->begin == first);
  CHECK(space().find(first) == again);
  space().free(*fresh);
  Allocation* last = space().allocate(AllocationKind::device, 7, part, "cudaMalloc");
  REQUIRE(last);
  CHECK(last->begin == second);
  for (Allocation* p : {parts[1], parts[3], again, last}) space().free(*p);
  space().usage(7, free_bytes, total);
  CHECK(free_bytes == total);
}

TEST_CASE("threads that touch one granule first all see the pattern") {
  Allocation& a = allocate(64 * Granule::bytes);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      TranslationCache cache;
      for (std::uint64_t at = 0; at < a.bytes; at += Granule::bytes) {
        std::uint32_t word;
        std::memcpy(&word, cache.translate(a.begin + at + 4096, 4), 4);
        if (word != AddressSpace::fill_pattern) ++wrong;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
  space().free(a);
}

TEST_CASE("memory in a file is the same at its own address and where it is imported") {
  // Several small allocations lie in one page, which goes into the file once.
  Allocation& first = allocate(700);
  Allocation& second = allocate(300000);
  Allocation& other = allocate(700);
  std::memset(space().translate(first.begin, 4).host, 1, 4);
  std::memset(space().translate(other.begin, 4).host, 3, 4);
  const SharedPlace place = space().share(second), place_of_first = space().share(first);
  CHECK(place.file == place_of_first.file);
  CHECK(place.offset - place_of_first.offset == second.begin - first.begin);
  CHECK(word_at(first.begin) == 0x01010101);
  CHECK(word_at(other.begin) == 0x03030303);
  CHECK(word_at(second.begin + 299996) == AddressSpace::fill_pattern);
  CHECK_FALSE(space().first_uninitialised(second.begin, 300000));
  CHECK(space().first_uninitialised(other.begin, 700));

  Allocation* const import = space().import(0, place, 300000, "import");
  Allocation* const import_of_first = space().import(0, place_of_first, 700, "import");
  REQUIRE(import);
  REQUIRE(import_of_first);
  CHECK(word_at(import_of_first->begin) == 0x01010101);
  CHECK_FALSE(space().first_uninitialised(import->begin, 300000));
  CHECK(space().translate(import->begin, 300001).host == nullptr);
  for (const std::uint64_t offset : {0, 4096, 70000, 299996}) {
    std::memset(space().translate(import->begin + offset, 4).host, 5, 4);
    CHECK(word_at(second.begin + offset) == 0x05050505);
    std::memset(space().translate(second.begin + offset, 4).host, 6, 4);
    CHECK(word_at(import->begin + offset) == 0x06060606);
  }

  // The importer's memory becomes its own again, and the contents stay with the owner.
  const std::uint64_t freed = import->begin;
  space().free(*import);
  space().free(*import_of_first);
  CHECK(space().translate(freed, 4).after_free);
  CHECK(word_at(second.begin) == 0x06060606);
  space().free(second);
  CHECK(word_at(first.begin) == 0x01010101);
  space().free(first);
  space().free(other);
}
