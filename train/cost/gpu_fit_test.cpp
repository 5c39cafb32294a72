#include "train/cost/gpu_fit.h"

#include <doctest/doctest.h>

using namespace nemocube;

TEST_CASE("memory: what fits on a GPU is the driver's memory less context, NCCL's buffers and a reserve") {
  const GpuRates h100 = gpu_rates("h100-80");
  const GpuFit room = fit_on(h100, 70'000'000'000, 4'000'000'000);
  CHECK(room.memory == 84'932'978'278);  // 79.1 GiB
  CHECK(room.left() == room.memory - room.context - room.nccl - room.reserve);
  CHECK(room.fits());
  CHECK_FALSE(room.on_the_edge());
  CHECK(to_string(room, "h100-80") ==
        "it fits on an h100-80, with 8.70 GB (8.10 GiB) to spare: its driver reports 84.9 GB (79.1 GiB); "
        "less CUDA's "
        "context and libraries 534 MB (0.50 GiB), NCCL's buffers 4.00 GB (3.73 GiB) and a reserve of 2 % for "
        "gaps, "
        "scratch memory and estimates 1.70 GB (1.58 GiB), 78.7 GB (73.3 GiB) are left for tensors; a rank "
        "needs about "
        "70.0 GB (65.2 GiB)");

  const GpuFit edge = fit_on(h100, room.left() + 1'000'000'000, 4'000'000'000);
  CHECK_FALSE(edge.fits());
  CHECK(edge.on_the_edge());
  CHECK(to_string(edge, "h100")
            .starts_with("it is on the edge on an h100: 1.00 GB (0.93 GiB) of the reserve are needed: its "
                         "driver reports 84.9 GB"));

  const GpuFit none = fit_on(h100, room.left() + room.reserve + 3'000'000'000, 4'000'000'000);
  CHECK_FALSE(none.fits());
  CHECK_FALSE(none.on_the_edge());
  CHECK(to_string(none, "h100")
            .starts_with(
                "it does not fit on an h100: 3.00 GB (2.79 GiB) are missing even without the reserve: "));

  const GpuFit alone = fit_on(gpu_rates("h200-141"), 100'000'000'000, 0);
  CHECK(alone.memory == std::int64_t{139} << 30);
  CHECK(to_string(alone, "h200").find("NCCL") == std::string::npos);
}
