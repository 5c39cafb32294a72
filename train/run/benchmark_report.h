#pragma once
#include <string>

#include "data/json/json.h"
#include "train/run/benchmark.h"

namespace nemocube {

/// The table of a benchmark: its head, a line for the last
/// finished step, and the end of the table.
std::string benchmark_head(const BenchmarkResult& result);
std::string benchmark_step_line(const BenchmarkResult& result);
std::string benchmark_summary(const BenchmarkResult& result);

/// First AutoModel's keys (nemo_automodel/recipes/llm/benchmark.py), with AutoModel's count of operations:
///   total_steps, warmup_steps, training_steps (without the warm-up), setup_time_seconds,
///   warmup_time_seconds, training_time_seconds, avg_iter_time_seconds, avg_mfu_percent (null without
///   peak_tflops), tflops_per_gpu, peak_tflops, world_size, global_batch_size, local_batch_size, seq_len
/// `tflops_per_gpu` has AutoModel's name and meaning, which differ: it is the 10^12 operations of a step on
/// all ranks, and no rate. Ours follow:
///   tokens_per_second, tokens_per_second_per_rank, step_tflop (10^12 operations of a step, model/flops.h),
///   tflop_per_second_per_rank, mfu_percent (both from step_tflop), step_seconds (a list), loss_first,
///   loss_last, skipped_steps, peak_gib, version
/// Seconds are of the rank that took longest; AutoModel takes rank 0 for the
/// averages. A loss that is not finite is null.
Json benchmark_json(const BenchmarkResult& result);

}  // namespace nemocube
