#include "train/run/benchmark.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "train/run/benchmark_report.h"

using namespace nemocube;

namespace {

/// Six steps of 4 x 8 tokens on two ranks, the first two warm-up.
BenchmarkResult measured() {
  BenchmarkResult r;
  r.steps = 6;
  r.warmup_steps = 2;
  r.ranks = 2;
  r.global_batch = 4;
  r.local_batch = 1;
  r.sequence_length = 8;
  r.peak_tflops = 4;
  r.setup_seconds = 3;
  r.step_seconds = {9, 1, 2, 3, 2, 1};
  r.losses = {5, 4, 3, 2, 1, std::numeric_limits<double>::infinity()};
  r.flops = 8e12;
  r.automodel_flops = 10e12;
  r.peak_bytes = std::int64_t{1} << 31;
  return r;
}

}  // namespace

// The values of AutoModel's own test of its calculate_mfu().
TEST_CASE("benchmark: MFU in percent") {
  CHECK(mfu_percent(1e12, 8, 1, 1) == 12.5);
  CHECK(mfu_percent(989e12, 8, 1, 1979) == doctest::Approx(6.24684).epsilon(1e-6));
  CHECK(mfu_percent(500e12, 64, 2, 1979) == doctest::Approx(0.197385).epsilon(1e-6));
}

TEST_CASE("benchmark: the warm-up is left out of means") {
  const BenchmarkResult r = measured();
  CHECK(r.warmup_seconds() == 10);
  CHECK(r.training_seconds() == 8);
  CHECK(r.mean_seconds() == 2);
  CHECK(r.tokens() == 32);
}

TEST_CASE("benchmark: JSON with AutoModel's keys in front, then correct figures") {
  BenchmarkResult r = measured();
  Json json = benchmark_json(r);
  json.erase("version");
  CHECK(json.dump() ==
        R"({"total_steps":6,"warmup_steps":2,"training_steps":4,"setup_time_seconds":3.0,)"
        R"("warmup_time_seconds":10.0,"training_time_seconds":8.0,"avg_iter_time_seconds":2.0,)"
        R"("avg_mfu_percent":62.5,"tflops_per_gpu":10.0,"peak_tflops":4.0,"world_size":2,)"
        R"("global_batch_size":4,"local_batch_size":1,"seq_len":8,"tokens_per_second":16.0,)"
        R"("tokens_per_second_per_rank":8.0,"step_tflop":8.0,"tflop_per_second_per_rank":2.0,)"
        R"("mfu_percent":50.0,"step_seconds":[9.0,1.0,2.0,3.0,2.0,1.0],"loss_first":5.0,"loss_last":null,)"
        R"("skipped_steps":0,"peak_gib":2.0})");
  r.peak_tflops.reset();
  for (const char* key : {"avg_mfu_percent", "mfu_percent", "peak_tflops"})
    CHECK(benchmark_json(r)[key].is_null());
}

TEST_CASE("benchmark: a line for a step, and the summary") {
  BenchmarkResult r = measured();
  r.skipped_steps = 1;
  CHECK(benchmark_summary(r) ==
        "\nset-up                            3.00 s\n"
        "warm-up                           10.00 s\n"
        "measured                          8.00 s, 4 steps\n"
        "mean step                         2.0000 s\n"
        "tokens                            16 a second, 8 a second and rank\n"
        "operations of a step              8.000000 TFLOP; as AutoModel counts, 10.000000\n"
        "operations a second and rank      2.000 TFLOP/s\n"
        "MFU                               50.00 % of 4 TFLOP/s; as AutoModel counts, 62.50 %\n"
        "peak memory of a rank             2.000 GiB\n"
        "skipped steps                     1\n");
  r.step_seconds.resize(2);
  r.losses.resize(2);
  CHECK(benchmark_step_line(r) ==
        "      warm-up 1         4.0000         1.0000             32          4.000         100.00\n");
  r.step_seconds.push_back(2);
  r.losses.push_back(3);
  r.peak_tflops.reset();
  CHECK(benchmark_step_line(r) ==
        "              2         3.0000         2.0000             16          2.000              -\n");
  CHECK(benchmark_summary(r).find(
            "MFU                               unknown without benchmark.peak_tflops\n") !=
        std::string::npos);
}
