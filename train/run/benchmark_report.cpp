#include "train/run/benchmark_report.h"

#include <cmath>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "core/version.h"
#include "train/logging/records.h"

namespace nemocube {
namespace {

double tflop_per_second_and_rank(const BenchmarkResult& r, double seconds) {
  return r.flops * 1e-12 / (seconds * static_cast<double>(r.ranks));
}

std::string fixed_point(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

std::string percent_of_peak(const BenchmarkResult& r, double flops, double seconds) {
  return r.peak_tflops ? fixed_point(mfu_percent(flops, r.ranks, seconds, *r.peak_tflops), 2) : "-";
}

std::string row(const std::vector<std::string>& cells) {
  std::ostringstream text;
  for (const std::string& cell : cells) text << std::setw(15) << cell;
  return text.str() + "\n";
}

std::string summary_line(const char* name, const std::string& value) {
  std::ostringstream text;
  text << std::left << std::setw(34) << name << value << '\n';
  return text.str();
}

Json finite_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

}  // namespace

std::string benchmark_head(const BenchmarkResult& r) {
  return cat(r.steps, " steps, ", r.warmup_steps, " of them warm-up; ", r.global_batch, " x ",
             r.sequence_length, " tokens a step on ", r.ranks, r.ranks == 1 ? " rank" : " ranks", ", ",
             r.local_batch, " rows of a replica at a time\n") +
         row({"step", "loss", "seconds", "tokens/s", "TFLOP/s/rank", "MFU %"});
}

std::string benchmark_step_line(const BenchmarkResult& r) {
  const auto step = static_cast<std::int64_t>(r.step_seconds.size()) - 1;
  expect(step >= 0, "benchmark: no step is done");
  const double seconds = r.step_seconds.back();
  return row({(r.is_warmup(step) ? "warm-up " : "") + std::to_string(step), fixed_point(r.losses.back(), 4),
              fixed_point(seconds, 4), fixed_point(r.tokens() / seconds, 0),
              fixed_point(tflop_per_second_and_rank(r, seconds), 3), percent_of_peak(r, r.flops, seconds)});
}

std::string benchmark_summary(const BenchmarkResult& r) {
  const double seconds = r.mean_seconds();
  return "\n" + summary_line("set-up", fixed_point(r.setup_seconds, 2) + " s") +
         summary_line("warm-up", fixed_point(r.warmup_seconds(), 2) + " s") +
         summary_line("measured",
                      cat(fixed_point(r.training_seconds(), 2), " s, ", r.steps - r.warmup_steps, " steps")) +
         summary_line("mean step", fixed_point(seconds, 4) + " s") +
         summary_line("tokens", cat(fixed_point(r.tokens() / seconds, 0), " a second, ",
                                    fixed_point(r.tokens() / seconds / static_cast<double>(r.ranks), 0),
                                    " a second and rank")) +
         summary_line("operations of a step",
                      cat(fixed_point(r.flops * 1e-12, 6), " TFLOP; as AutoModel counts, ",
                          fixed_point(r.automodel_flops * 1e-12, 6))) +
         summary_line("operations a second and rank",
                      fixed_point(tflop_per_second_and_rank(r, seconds), 3) + " TFLOP/s") +
         (r.peak_tflops ? summary_line("MFU", cat(percent_of_peak(r, r.flops, seconds), " % of ",
                                                  *r.peak_tflops, " TFLOP/s; as AutoModel counts, ",
                                                  percent_of_peak(r, r.automodel_flops, seconds), " %"))
                        : summary_line("MFU", "unknown without benchmark.peak_tflops")) +
         summary_line("peak memory of a rank", fixed_point(gib(r.peak_bytes), 3) + " GiB") +
         (r.skipped_steps > 0 ? summary_line("skipped steps", std::to_string(r.skipped_steps)) : "");
}

Json benchmark_json(const BenchmarkResult& r) {
  const double seconds = r.mean_seconds();
  const auto of_peak = [&](double flops) {
    return r.peak_tflops ? Json(mfu_percent(flops, r.ranks, seconds, *r.peak_tflops)) : Json();
  };
  return {{"total_steps", r.steps},
          {"warmup_steps", r.warmup_steps},
          {"training_steps", r.steps - r.warmup_steps},
          {"setup_time_seconds", r.setup_seconds},
          {"warmup_time_seconds", r.warmup_seconds()},
          {"training_time_seconds", r.training_seconds()},
          {"avg_iter_time_seconds", seconds},
          {"avg_mfu_percent", of_peak(r.automodel_flops)},
          {"tflops_per_gpu", r.automodel_flops * 1e-12},
          {"peak_tflops", r.peak_tflops ? Json(*r.peak_tflops) : Json()},
          {"world_size", r.ranks},
          {"global_batch_size", r.global_batch},
          {"local_batch_size", r.local_batch},
          {"seq_len", r.sequence_length},
          {"tokens_per_second", r.tokens() / seconds},
          {"tokens_per_second_per_rank", r.tokens() / seconds / static_cast<double>(r.ranks)},
          {"step_tflop", r.flops * 1e-12},
          {"tflop_per_second_per_rank", tflop_per_second_and_rank(r, seconds)},
          {"mfu_percent", of_peak(r.flops)},
          {"step_seconds", r.step_seconds},
          {"loss_first", finite_or_null(r.losses.front())},
          {"loss_last", finite_or_null(r.losses.back())},
          {"skipped_steps", r.skipped_steps},
          {"peak_gib", gib(r.peak_bytes)},
          {"version", std::string(version())}};
}

}  // namespace nemocube
