#include "machine/resources.h"

#include <doctest/doctest.h>

#include "tests/harness.h"

namespace emulator {
namespace {

// Braces nest, and stand in strings and comments too.
const std::string header = ".version 9.0\n.target sm_90\n.address_size 64\n.global .u32 g[2] = {1, 2};\n";
const std::string function = ".func f()\n{\nret;\n}\n";
const std::string first =
    ".visible .entry first(.param .u64 p0)\n{\n{ // }\n.reg .b32 %r<9>;\n}\n/* } */\n.pragma "
    "\"}\";\nret;\n}\n";
const std::string second =
    ".visible .entry second(\n.param .u64 p0\n)\n.maxntid 128\n{\n.reg .b64 %rd<9>;\n.reg .b32 %r<9>;\n"
    "ld.param.u64 %rd1, [p0];\nst.global.u32 [%rd1], 1;\nret;\n}\n";

TEST_CASE("resources: a unit without its other kernels") {
  const std::string text = header + first + function + second;
  CHECK(without_other_entries(text, "first") == header + first + function + "\n");
  // What stands between two kernels stays, line ends too.
  CHECK(without_other_entries(text, "second") == header + "\n" + function + second);
  CHECK(without_other_entries(text, "third") == header + "\n" + function + "\n");
  CHECK(without_other_entries(header, "first") == header);
  const std::string declared = ".visible .entry second(.param .u64 p0);\n";
  CHECK(without_other_entries(header + declared + first, "first") == header + "\n" + first);
}

TEST_CASE("resources: ptxas is asked for one kernel of a unit") {
  Module module({header + first + function + second}, 0);
  CHECK(resources_of(*module.kernel("first")).known);
  const KernelResources& resources = resources_of(*module.kernel("second"));
  CHECK(resources.known);
  CHECK(resources.registers > 0);
  CHECK(resources.spill_store_bytes == 0);
}

TEST_CASE("resources: what limits the blocks of a multiprocessor") {
  const auto check = [](const Residency& found, std::uint64_t blocks, const std::string& limit) {
    CAPTURE(found.limit);
    CHECK(found.blocks == blocks);
    CHECK(found.limit == limit);
  };
  check(blocks_per_multiprocessor(1024, 32, 0), 2, "1024 threads a block");
  check(blocks_per_multiprocessor(32, 16, 0), 32, "32 blocks a multiprocessor");
  check(blocks_per_multiprocessor(256, 128, 0), 2, "128 registers a thread");
  check(blocks_per_multiprocessor(256, 32, 100 << 10), 2, "102400 bytes of shared memory a block");
}

}  // namespace
}  // namespace emulator
