#include "train/bench/kernel_report.h"

#include <doctest/doctest.h>

using namespace nemocube;

namespace {

/// A kernel whose DRAM bytes take 1 us, and everything else less.
constexpr const char* counters = R"json({"kernels": [
    {"name": "void nemocube::cuda::(anonymous namespace)::norm_kernel<float, 4>(nemocube::cuda::Rows)",
     "launches": 2, "blocks": 264, "resident_blocks": 6, "dram_bytes": 3350000, "global_bytes": 3200000, "sectors": 100000, "shared_wavefronts": 130000,
     "shared_wavefronts_ideal": 100000, "spill_bytes": 8, "registers": 40, "occupancy": 0.75,
     "warp_instructions": 10000, "multiply_adds": 1000000, "mma_multiply_adds": 3000000}]})json";

KernelCounters counted() { return parse_kernel_counters(counters, "counters.json"); }

BenchCase work(double bytes, double flops) {
  BenchCase c{"forward", {{"tokens", 512}}};
  c.bytes = bytes;
  c.flops = flops;
  return c;
}

}  // namespace

TEST_CASE("kernel report: counters in, a row out") {
  CHECK(kernel_row(counted().kernels[0], true) ==
        "| `norm_kernel<float, 4>` | 2 | 132 | 6 | 3.35 | 1.00 | 3.00 | 1.00 | 1.30 | 40 | 8 | 0.75 | 1.00 | "
        "DRAM | "
        "wavefronts 1.30 > 1.15, spills 8 bytes |\n");
  KernelCount unknown = counted().kernels[0];
  unknown.registers = unknown.spill_bytes = std::nullopt;
  unknown.wavefronts = unknown.ideal_wavefronts = 0;
  unknown.sectors = 120'000;
  CHECK(kernel_row(unknown, true) ==
        "| `norm_kernel<float, 4>` | 2 | 132 | 6 | 3.35 | 1.20 | 3.00 | 1.00 | - | ? | ? | 0.75 | 1.00 | "
        "DRAM | "
        "sectors 1.20 > 1.10 |\n");
  CHECK(kernel_row(unknown, false).ends_with("| DRAM |  |\n"));  // no aim for its sectors
}

TEST_CASE("kernel report: what bounds a kernel") {
  const auto bound = [](const KernelCount& k) { return std::string(modelled_time(k).bound); };
  CHECK(bound({.dram_bytes = 1000}) == "DRAM");
  CHECK(bound({.dram_bytes = 1000, .sectors = 1000}) == "L2");
  CHECK(bound({.dram_bytes = 1000, .mma_multiply_adds = 1'000'000}) == "tensor cores");
  CHECK(bound({.dram_bytes = 1000, .multiply_adds = 1'000'000}) == "multiply-adds");
  CHECK(bound({.dram_bytes = 1000, .wavefronts = 1'000'000}) == "shared");
  CHECK(bound({.dram_bytes = 1000, .warp_instructions = 1'000'000}) == "issue");
  CHECK(modelled_time({.wavefronts = 132}).seconds == doctest::Approx(1 / 1.755e9));
  CHECK(modelled_time({.warp_instructions = 4 * 132}).seconds == doctest::Approx(1 / 1.755e9));
  CHECK(modelled_time({.mma_multiply_adds = 989}).seconds == doctest::Approx(2e-12));
}

TEST_CASE("kernel report: the busiest multiprocessor decides, except for DRAM and L2") {
  CHECK(busiest_share({.launches = 1, .blocks = 132}) == 1);
  CHECK(busiest_share({.launches = 2, .blocks = 264}) == 1);
  CHECK(busiest_share({.launches = 1, .blocks = 88}) == doctest::Approx(1.5));
  CHECK(busiest_share({.launches = 1, .blocks = 1}) == doctest::Approx(132));
  CHECK(busiest_share({.launches = 2, .blocks = 2 * 198}) == doctest::Approx(2 / 1.5));
  const auto times = [](const KernelCount& k) {
    return modelled_time(k).seconds / modelled_time(k, Placement::even).seconds;
  };
  for (KernelCount k : {KernelCount{.wavefronts = 1000}, KernelCount{.warp_instructions = 1000},
                        KernelCount{.multiply_adds = 1000}, KernelCount{.mma_multiply_adds = 1000}}) {
    k.launches = 1;
    k.blocks = 33;
    CHECK(times(k) == doctest::Approx(4));
  }
  CHECK(times({.launches = 1, .blocks = 33, .dram_bytes = 1000}) == 1);
  CHECK(times({.launches = 1, .blocks = 33, .sectors = 1000}) == 1);
}

TEST_CASE("kernel report: aims") {
  const KernelCounters all = counted();
  CHECK(missed_aims("rmsnorm", work(3.3e6, 0), all).empty());
  CHECK(missed_aims("rmsnorm", work(3.0e6, 0), all) == std::vector<std::string>{"DRAM 1.12 > 1.05"});
  CHECK(missed_aims("linear", work(3.0e6, 1e12), all).empty());  // its operations take longer than its bytes
  CHECK(missed_aims("ssd_scan", work(2.0e6, 1e12), all) ==
        std::vector<std::string>{"DRAM 1.68 > 1.60", "on tensor cores 75.0 % < 95 %"});
  CHECK(missed_aims("attention", work(2.0e6, 0), all) ==
        std::vector<std::string>{"on tensor cores 75.0 % < 95 %"});
  KernelCount little = all.kernels[0];
  little.dram_bytes = 900'000;
  CHECK(missed_aims(little, true).empty());
}

TEST_CASE("kernel report: names of kernels") {
  CHECK(short_kernel_name("plain_kernel(int*, float)") == "plain_kernel");
  CHECK(short_kernel_name("void nemocube::cuda::sum_kernel<nemocube::cuda::Row<float> >(int)") ==
        "sum_kernel<Row<float> >");
  CHECK(
      short_kernel_name(
          "void cub::detail::scan<std::integral_constant<unsigned long long, 1234567890123ull>, int>(int)") ==
      "scan<..>");
}

TEST_CASE("kernel report: the section of a case has totals and a row for each kernel") {
  const std::string text = kernel_report("rmsnorm", work(3.0e6, 0), counted());
  CHECK(text.starts_with(
      "### rmsnorm, forward\n\ntokens 512.\nMust move 3.00 MB, moves 3.35 MB: 1.12 times (aim 1.05). "
      "Launches: 2. Least time: 1.00 us. On tensor cores: 75.0 % of multiply-adds.\n"
      "**Missed: DRAM 1.12 > 1.05.**\n\n| kernel |"));
  CHECK(text.find("\n| `norm_kernel<float, 4>` |") != std::string::npos);
}
