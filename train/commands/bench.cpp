#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/profile.h"
#include "train/bench/bench_op.h"
#include "train/bench/bench_step.h"
#include "train/commands/commands.h"

namespace nemocube {
namespace {

void print_step(const BenchStepOptions& options, const BenchStepResult& r, bool json) {
  const auto& s = r.step_seconds;
  const double typical = median(s.size() > 1 ? std::vector<double>(s.begin() + 1, s.end()) : s);
  std::cout << std::fixed << std::setprecision(3) << "batch " << options.batch << " x " << options.seq
            << " tokens, " << options.dtype << ": median step " << typical << " s, " << std::setprecision(0)
            << r.tokens_per_second << " tokens/s, " << std::setprecision(1) << r.flops / typical * 1e-9
            << " GFLOP/s, peak " << static_cast<double>(r.peak_bytes) / (1 << 20)
            << " MiB, start to first step " << std::setprecision(2) << r.start_seconds << " s\n";
  const double steps = s.size() > 1 ? static_cast<double>(s.size() - 1) : 1;
  std::cout << "seconds a step by zone (the first step left out; zones may contain others):\n";
  for (const auto& [name, total] : zone_totals())
    std::cout << "  " << std::left << std::setw(32) << name << std::right << std::setprecision(4)
              << std::setw(9) << total.seconds / steps << "  " << total.calls << " calls\n";
  if (json)
    std::cout << nlohmann::json({{"step_seconds", s},
                                 {"tokens_per_second", r.tokens_per_second},
                                 {"peak_bytes", r.peak_bytes},
                                 {"tensor_peak_bytes", r.tensor_peak_bytes},
                                 {"gemm_seconds", r.gemm_seconds},
                                 {"flops", r.flops},
                                 {"start_seconds", r.start_seconds},
                                 {"loss_first", r.loss_first},
                                 {"loss_last", r.loss_last}})
                     .dump()
              << std::endl;
}

void add_step(CLI::App& bench) {
  struct Options {
    BenchStepOptions step;
    std::string dtype = "f32";
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand("step", "Whole training steps on random tokens");
  command->add_option("--config", o->step.config, "directory with the config.json of a model")->required();
  command->add_option("--batch", o->step.batch)->capture_default_str();
  command->add_option("--seq", o->step.seq)->capture_default_str();
  command->add_option("--steps", o->step.steps)->capture_default_str();
  command->add_option("--dtype", o->dtype, "f32, bf16 or f64: storage of weights and activations")
      ->capture_default_str();
  command->add_flag("--activation-checkpointing", o->step.activation_checkpointing);
  command->add_flag("--json", o->json, "print one JSON line last");
  command->callback([o] {
    o->step.dtype = parse_weight_dtype(o->dtype);
    print_step(o->step, bench_step(o->step), o->json);
  });
}

void add_op(CLI::App& bench) {
  struct Options {
    BenchOpOptions op;
    std::string dtype = "f32";
  };
  auto o = std::make_shared<Options>();
  CLI::App* command =
      bench.add_subcommand("op", "Single operations: correctness, time and distance to the floor");
  command->add_option("--op", o->op.op, "one operation; default: all");
  command->add_option("--variant", o->op.variant, "cases whose name contains this")->capture_default_str();
  command->add_option("--dtype", o->dtype, "f32, bf16 or f64")->capture_default_str();
  command->add_option("--repeats", o->op.repeats)->capture_default_str()->check(CLI::Range(1, 1'000'000));
  command->add_flag("--small", o->op.sizes.small, "sizes that finish in milliseconds");
  command->add_flag("--json", o->op.json, "one JSON object a line");
  command->callback([o] {
    o->op.sizes.dtype = parse_weight_dtype(o->dtype);
    require(bench_op(o->op, std::cout), "bench op: a case failed its verification (ok=0 above)");
  });
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Benchmarks of operations and of whole steps");
  bench->require_subcommand(1);
  add_op(*bench);
  add_step(*bench);
}

}  // namespace nemocube
