#include "train/bench/kernel_counters.h"

#include <doctest/doctest.h>

#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("kernel counters: kernels are added up") {
  const KernelCounters sum = parse_kernel_counters(R"({"kernels": [
    {"name": "a<float>", "launches": 2, "blocks": 60, "resident_blocks": 4, "dram_bytes": 100, "dram_read_bytes": 60, "dram_write_bytes": 40,
     "global_bytes": 90, "sectors": 5, "shared_wavefronts": 7, "shared_wavefronts_ideal": 4, "local_bytes": 0,
     "spill_bytes": 8, "registers": 40, "occupancy": 0.75, "instructions": {"fma": 3}, "multiply_adds": 3,
     "mma_multiply_adds": 2048, "warp_instructions": 9, "atomics": 0, "active_lanes": 32.0},
    {"name": "b", "launches": 1, "blocks": 5, "resident_blocks": 2, "dram_bytes": 10, "global_bytes": 10, "sectors": 1, "shared_wavefronts": 2,
     "shared_wavefronts_ideal": 2, "warp_instructions": 4, "multiply_adds": 0, "mma_multiply_adds": 0, "spill_bytes": 0, "registers": 64, "occupancy": 1.0}]})",
                                                   "counters.json");
  CHECK(sum.launches == 3);
  CHECK(sum.dram_bytes == 110);
  CHECK(sum.global_bytes == 100);
  CHECK(sum.sectors == 6);
  CHECK(sum.bank_conflicts == 3);
  CHECK(sum.spill_bytes == 8);
  CHECK(sum.registers == 64);
  CHECK(sum.occupancy == 0.75);
  REQUIRE(sum.kernels.size() == 2);
  CHECK(sum.kernels[0].name == "a<float>");
  CHECK(sum.kernels[0].blocks == 60);
  CHECK(sum.kernels[0].resident_blocks == 4);
  CHECK(sum.kernels[0].dram_bytes == 100);
  CHECK(sum.kernels[0].wavefronts == 7);
  CHECK(sum.kernels[0].ideal_wavefronts == 4);
  CHECK(sum.kernels[0].warp_instructions == 9);
  CHECK(sum.kernels[0].multiply_adds == 3);
  CHECK(sum.kernels[0].mma_multiply_adds == 2048);
  CHECK(sum.kernels[1].registers == 64);
  const KernelCounters without_ptxas = parse_kernel_counters(R"({"kernels": [
    {"name": "a", "launches": 1, "blocks": 5, "resident_blocks": 2, "dram_bytes": 1, "global_bytes": 1, "sectors": 1, "shared_wavefronts": 0,
     "shared_wavefronts_ideal": 0, "warp_instructions": 1, "multiply_adds": 0, "mma_multiply_adds": 0, "spill_bytes": null, "registers": null, "occupancy": 1.0}]})",
                                                             "counters.json");
  CHECK_FALSE(without_ptxas.registers.has_value());
  CHECK_FALSE(without_ptxas.spill_bytes.has_value());
  CHECK(parse_kernel_counters(R"({"kernels": []})", "x").launches == 0);
}

TEST_CASE("kernel counters: another file is refused by name") {
  for (const char* text : {"", "{}", R"({"kernels": [{"name": "a"}]})", R"({"kernels": 3})"}) {
    const std::string message = message_of([&] { parse_kernel_counters(text, "counters.json"); });
    CAPTURE(text);
    CHECK(message.starts_with("counters.json: not counters of the CUDA emulator: "));
  }
  CHECK(message_of([] { read_kernel_counters("/no/such/file"); }).starts_with("/no/such/file: "));
}
