#include <doctest/doctest.h>

#include "data/json/test_dir.h"
#include "train/bench/bench_cuda.h"
#include "train/bench/bench_op.h"
#include "train/bench/machine.h"
#include "train/bench/rates.h"
#include "train/bench/timing.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

void write_cache(const std::filesystem::path& cpus, int cpu, int index, const char* level, const char* type,
                 const char* size, const char* shared) {
  const auto dir = cpus / ("cpu" + std::to_string(cpu)) / "cache" / ("index" + std::to_string(index));
  std::filesystem::create_directories(dir);
  spit(dir / "level", level);
  spit(dir / "type", type);
  spit(dir / "size", size);
  spit(dir / "shared_cpu_list", shared);
}

/// Two cores with caches of 32 and 512 KiB each and 8 MiB together.
Machine two_cores() {
  Machine m;
  m.caches = {{"L1", 64 << 10}, {"L2", 1 << 20}, {"L3", 8 << 20}};
  return m;
}

}  // namespace

TEST_CASE("caches: distinct instances are added up, no more than threads; instructions do not count") {
  const TestDir dir;
  for (int cpu = 0; cpu < 4; ++cpu) {
    const std::string own = std::to_string(cpu), pair = cpu < 2 ? "0-1" : "2-3";
    write_cache(dir.path(), cpu, 0, "1\n", "Data\n", "32K\n", (own + "\n").c_str());
    write_cache(dir.path(), cpu, 1, "1\n", "Instruction\n", "64K\n", (own + "\n").c_str());
    write_cache(dir.path(), cpu, 2, "2\n", "Unified\n", "1024K\n", (pair + "\n").c_str());
    write_cache(dir.path(), cpu, 3, "3\n", "Unified\n", "8M\n", "0-3\n");
  }
  const auto sizes = [&](const std::vector<int>& cpus, int threads) {
    std::vector<std::int64_t> bytes;
    for (const Cache& c : read_caches(dir.path(), cpus, threads)) bytes.push_back(c.bytes);
    return bytes;
  };
  CHECK(sizes({0, 1, 2, 3}, 4) == std::vector<std::int64_t>{128 << 10, 2 << 20, 8 << 20});
  CHECK(sizes({0, 1}, 2) == std::vector<std::int64_t>{64 << 10, 1 << 20, 8 << 20});
  CHECK(sizes({0, 1, 2, 3}, 1) == std::vector<std::int64_t>{32 << 10, 1 << 20, 8 << 20});
  CHECK(sizes({7}, 1).empty());
}

TEST_CASE("machine: a size belongs to the nearest cache that holds it") {
  const Machine m = two_cores();
  CHECK(m.level_of(1000) == "L1");
  CHECK(m.level_of(64 << 10) == "L1");
  CHECK(m.level_of((64 << 10) + 1) == "L2");
  CHECK(m.level_of(8 << 20) == "L3");
  CHECK(m.level_of(100 << 20) == "DRAM");
  CHECK(Machine{}.level_of(1) == "DRAM");
}

TEST_CASE("rates: an operation is held against the largest size measured that is not larger") {
  const Rates rates{{{1024, 8e9}, {2048, 4e9}, {4096, 1e9}}, 1e12};
  CHECK(rates.bytes_per_second(100) == 8e9);
  CHECK(rates.bytes_per_second(1024) == 8e9);
  CHECK(rates.bytes_per_second(2047) == 8e9);
  CHECK(rates.bytes_per_second(2048) == 4e9);
  CHECK(rates.bytes_per_second(1 << 20) == 1e9);
  CHECK(rates.dram_bytes_per_second() == 1e9);
}

TEST_CASE("floor: the larger of the times of bytes and of products, from memory when cold") {
  const Machine m = two_cores();
  const Rates rates{{{16 << 10, 100e9}, {16 << 20, 10e9}}, 1e12};
  const Floor warm = floor_of(32 << 10, 0, rates, m, false);
  CHECK(warm.bound == "L1");
  CHECK(warm.seconds == doctest::Approx((32 << 10) / 100e9));
  const Floor cold = floor_of(32 << 10, 0, rates, m, true);
  CHECK(cold.bound == "DRAM");
  CHECK(cold.seconds == doctest::Approx((32 << 10) / 10e9));
  const Floor products = floor_of(32 << 10, 1e9, rates, m, false);
  CHECK(products.bound == "products");
  CHECK(products.seconds == doctest::Approx(1e-3));
}

TEST_CASE("rates as measured: positive, and no larger size is faster") {
  const auto list = measure_bandwidth(256 << 10);
  REQUIRE(list.size() == 5);
  for (std::size_t i = 0; i < list.size(); ++i) {
    CHECK(list[i].bytes == std::int64_t{16 << 10} << i);
    CHECK(list[i].bytes_per_second > 0);
    if (i > 0) CHECK(list[i].bytes_per_second <= list[i - 1].bytes_per_second);
  }
  CHECK(measure_products(DType::bf16, 32) > 0);
}

TEST_CASE("median") {
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({4, 1, 3, 2}) == 2.5);
  CHECK(median({5}) == 5);
  CHECK_THROWS(median({}));
}

TEST_CASE("columns that are counted are explained where they are counted, times where they are timed") {
  const std::string counted(bench_cuda_legend(true)), timed(bench_cuda_legend(false));
  CHECK(counted.find("DRAM MB") != std::string::npos);
  CHECK(counted.find("occupancy") != std::string::npos);
  CHECK(counted.find("best us") == std::string::npos);
  CHECK(timed.find("best us") != std::string::npos);
  CHECK(timed.find("DRAM") == std::string::npos);
}
