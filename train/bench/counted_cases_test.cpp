#include "train/bench/counted_cases.h"

#include <doctest/doctest.h>

#include "data/json/test_dir.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE(
    "bench: counted cases keep kernels with the time of work that is shared evenly, and are read as "
    "written") {
  // 33 blocks leave three of four multiprocessors without work: that is not in the time.
  const KernelCounters counters{.launches = 1,
                                .kernels = {{.name = "void nemocube::cuda::norm_kernel<float>(int)",
                                             .launches = 1,
                                             .blocks = 33,
                                             .wavefronts = 132}}};
  const CountedCase c = counted_case("rmsnorm", {"forward", {{"rows", 512}, {"cols", 64}}}, counters);
  const TestDir dir;
  append_counted_case(dir.path() / "cases", c);
  append_counted_case(dir.path() / "cases", {"relu2", "backward", {}, {}});
  const CountedCases read = read_counted_cases(dir.path() / "cases");
  REQUIRE(read.all().size() == 2);
  const CountedCase& first = read.find("rmsnorm", "forward");
  CHECK(first.size("rows") == 512);
  CHECK(first.size("cols") == 64);
  REQUIRE(first.kernels.size() == 1);
  CHECK(first.kernels[0].name == "norm_kernel<float>");
  CHECK(first.kernels[0].seconds == doctest::Approx(1 / 1.755e9));
  CHECK(first.kernels[0].placed_seconds == doctest::Approx(4 / 1.755e9));
  CHECK(first.kernels[0].bound == "shared");
  CHECK(message_of([&] { read.find("relu2", "forward"); }) ==
        "counted cases: there is none of relu2, forward");
  CHECK(message_of([&] { first.size("tokens"); }) ==
        "counted case rmsnorm, forward: it has no size 'tokens'");
}

TEST_CASE("bench: another file is not taken for counted cases") {
  const TestDir dir;
  spit(dir.path() / "cases", "{}\n");
  CHECK(message_of([&] { read_counted_cases(dir.path() / "cases"); }).find("not counted cases of bench op") !=
        std::string::npos);
  CHECK(message_of([&] { read_counted_cases(dir.path() / "none"); }).ends_with("none: cannot be read"));
  CHECK(message_of([&] {
          append_counted_case(dir.path() / "no" / "cases", {});
        }).ends_with("cannot be written"));
}
