#include <charconv>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/log.h"
#include "data/files/link.h"
#include "train/assemble/from_recipe.h"
#include "train/bench/bench_comm.h"
#include "train/bench/bench_cuda.h"
#include "train/bench/bench_op.h"
#include "train/bench/bench_step.h"
#include "train/bench/machine.h"
#include "train/commands/commands.h"
#include "train/cost/nano_estimate.h"
#include "train/device/device_of_rank.h"
#include "train/ranks/inputs.h"

namespace nemocube {
namespace {

constexpr double mib = 1 << 20;

void print_step(const BenchStepOptions& o, const BenchStepResult& r) {
  std::cout << std::fixed;
  const auto line = [](const char* name) -> std::ostream& {
    return std::cout << std::left << std::setw(18) << name << std::right;
  };
  const auto number = [](double value, int digits) {
    std::ostringstream text;
    text << std::fixed << std::setw(12) << std::setprecision(digits) << value;
    return text.str();
  };
  line("machine") << to_string(describe_machine()) << '\n';
  line("work") << o.batch << " x " << o.seq << " tokens a step, " << o.dtype << ", "
               << counted(o.steps, "step") << (o.activation_checkpointing ? ", activation checkpointing" : "")
               << '\n';
  line("step") << number(r.median_seconds, 4) << " s         median"
               << (o.steps > 1 ? " without the first" : "") << "; first " << std::setprecision(4)
               << r.step_seconds.front() << " s\n";
  line("tokens") << number(r.tokens_per_second, 0) << " tokens/s\n";
  line("model operations") << number(r.flops / r.median_seconds * 1e-9, 1)
                           << " GFLOP/s   3 x forward = " << std::setprecision(3) << r.flops * 1e-9
                           << " GFLOP a step\n";
  line("matrix products") << number(r.gemm_seconds(), 4) << " s a step\n";
  const double host = static_cast<double>(r.peak_bytes) / mib,
               tensors = static_cast<double>(r.tensor_peak_bytes) / mib;
  line("peak memory") << number(o.device.is_cuda() ? tensors : host, 1)
                      << (o.device.is_cuda() ? " MiB       tensors on the device; the process on the host "
                                             : " MiB       of it tensors ")
                      << std::setprecision(1) << (o.device.is_cuda() ? host : tensors) << " MiB\n";
  line("start") << number(r.start_seconds, 2) << " s         until the first step\n";
  if (r.launches > 0)
    line("launches") << number(static_cast<double>(r.launches), 0)
                     << (o.cuda_graphs ? cat("           a step; the CUDA graphs among them have ",
                                             r.launches_in_graphs, " of kernels and products of cuBLAS\n")
                                       : "           a step, of kernels and products of cuBLAS\n");
  line("loss") << number(r.loss_first, 4) << " at the first step, " << std::setprecision(4) << r.loss_last
               << " at the last\n\n";
  if (!r.ranks.empty()) {
    std::cout << std::left << std::setw(6) << "rank" << std::right << std::setw(12) << "compute s"
              << std::setw(14) << "collectives s" << std::setw(12) << "waiting s" << std::setw(14)
              << "MiB sent" << std::setw(14) << "peak MiB"
              << "   (a step; collectives run beside the computation)\n";
    for (std::size_t i = 0; i < r.ranks.size(); ++i) {
      const BenchStepResult::RankTimes& t = r.ranks[i];
      std::cout << std::left << std::setw(6) << i << std::right << std::setprecision(4) << std::setw(12)
                << t.compute << std::setw(14) << t.collectives << std::setw(12) << t.waiting
                << std::setprecision(1) << std::setw(14) << static_cast<double>(t.bytes_sent) / mib
                << std::setw(14) << static_cast<double>(t.peak_bytes) / mib << '\n';
    }
    std::cout << '\n';
  }
  if (!r.host_waits.empty()) {
    std::cout << std::left << std::setw(32) << "wait of the host for the device" << std::right
              << std::setw(10) << "a step" << '\n';
    for (const auto& [name, count] : r.host_waits)
      std::cout << std::left << std::setw(32) << name << std::right << std::setw(10) << std::setprecision(1)
                << static_cast<double>(count) / static_cast<double>(r.warm_steps) << '\n';
    std::cout << '\n';
  }
  if (r.timeline) std::cout << to_string(*r.timeline) << '\n';
  std::cout << std::left << std::setw(32) << "zone" << std::right << std::setw(10) << "s a step"
            << std::setw(9) << "of step" << std::setw(14) << "calls a step"
            << "   (zones may contain others)\n";
  for (const auto& [name, zone] : r.zones)
    std::cout << std::left << std::setw(32) << name << std::right << std::setw(10) << std::setprecision(4)
              << zone.seconds << std::setw(8) << std::setprecision(1) << 100 * zone.seconds / r.median_seconds
              << '%' << std::setw(14) << zone.calls << '\n';
}

nlohmann::json timeline_json(const StepTimeline& t) {
  nlohmann::json json{{"seconds", t.seconds},
                      {"exposed_seconds", t.exposed},
                      {"least_exposed_seconds", t.least_exposed},
                      {"ranks", nlohmann::json::array()}};
  for (const StepTimeline::DeviceSeconds& d : t.ranks)
    json["ranks"].push_back({{"computing_seconds", d.computing},
                             {"communicating_seconds", d.communicating},
                             {"waiting_seconds", d.waiting},
                             {"copying_seconds", d.copying},
                             {"host_seconds", d.host},
                             {"forward_seconds", d.forward},
                             {"backward_seconds", d.backward}});
  if (t.bubble) json["bubble"] = {{"share", t.bubble->share}, {"share_of_schedule", t.bubble->of_schedule}};
  return json;
}

nlohmann::json step_json(const BenchStepOptions& o, const BenchStepResult& r) {
  nlohmann::json zones = nlohmann::json::object();
  for (const auto& [name, zone] : r.zones) zones[name] = {{"seconds", zone.seconds}, {"calls", zone.calls}};
  nlohmann::json ranks = nlohmann::json::array();
  for (const BenchStepResult::RankTimes& t : r.ranks)
    ranks.push_back({{"compute_seconds", t.compute},
                     {"collective_seconds", t.collectives},
                     {"waiting_seconds", t.waiting},
                     {"bytes_sent", t.bytes_sent},
                     {"peak_bytes", t.peak_bytes}});
  return {{"machine", to_json(describe_machine())},
          {"config", o.config.string()},
          {"batch", o.batch},
          {"seq", o.seq},
          {"dtype", name_of(o.dtype)},
          {"activation_checkpointing", o.activation_checkpointing},
          {"step_seconds", r.step_seconds},
          {"tokens_per_second", r.tokens_per_second},
          {"peak_bytes", r.peak_bytes},
          {"tensor_peak_bytes", r.tensor_peak_bytes},
          {"gemm_seconds", r.gemm_seconds()},
          {"flops", r.flops},
          {"start_seconds", r.start_seconds},
          {"loss_first", r.loss_first},
          {"loss_last", r.loss_last},
          {"zones", zones},
          {"host_waits", r.host_waits},
          {"launches", r.launches},
          {"launches_in_graphs", r.launches_in_graphs},
          {"ranks", ranks},
          {"timeline", r.timeline ? timeline_json(*r.timeline) : nlohmann::json()},
          {"peak_bytes_all_ranks", r.peak_bytes_all_ranks()}};
}

Inputs inputs_of_step(const BenchStepOptions& o, const Recipe& recipe) {
  Inputs inputs{"the command line",
                cat("--batch: ", o.batch, "\n--seq: ", o.seq, "\n--microbatches: ", o.microbatches,
                    "\n--steps: ", o.steps, "\n--dtype: ", o.dtype,
                    "\n--activation-checkpointing: ", o.activation_checkpointing ? "yes" : "no",
                    "\n--cuda-graphs: ", o.cuda_graphs ? "yes" : "no", "\n", describe(recipe)),
                {},
                recipe.debug.allow_differing_instruction_sets};
  // Where the file is missing, reading the configuration says so.
  const auto config = std::filesystem::is_directory(o.config) ? o.config / "config.json" : o.config;
  if (std::filesystem::is_regular_file(config)) inputs.files.insert(config);
  return inputs;
}

void add_step(Command& bench) {
  struct Options {
    BenchStepOptions step;
    std::string dtype = "f32", device;
    std::vector<std::string> overrides;
    bool share_device = false, json = false;
  };
  auto o = std::make_shared<Options>();
  Command* command = bench.add_subcommand(
      "step", "Whole training steps (forward, backward, clip, AdamW) on random tokens and fresh weights");
  command->add_option("--config", o->step.config, "directory with the config.json of a model")->required();
  command->add_option("--batch", o->step.batch, "sequences in a step, on all ranks")->capture_default_str();
  command->add_option("--seq", o->step.seq, "tokens in a sequence")->capture_default_str();
  command->add_option("--microbatches", o->step.microbatches, "into which each replica cuts its sequences")
      ->capture_default_str();
  command->add_option("--steps", o->step.steps, "steps to run; the first is left out of the median")
      ->capture_default_str();
  command->add_option("--dtype", o->dtype, "f32, bf16 or f64: storage of weights and activations")
      ->capture_default_str();
  add_device_option(*command, o->device, "cpu");
  add_share_device_option(*command, o->share_device);
  command->add_flag("--activation-checkpointing", o->step.activation_checkpointing,
                    "keep only the inputs of blocks and form the rest again in backward");
  command->add_flag("--cuda-graphs", o->step.cuda_graphs,
                    "on cuda: queue the passes of a microbatch, and the update, by one launch each");
  command
      ->add_option("--set", o->overrides,
                   "distributed.key=value, as in a recipe: how several ranks share the work; may be repeated")
      ->allow_extra_args(false);
  command->add_flag("--json", o->json, "print one JSON line last, with times of every step and the machine");
  command->callback_of_ranks([o](const Launch& launch) {
    const Device chosen = choose_device(o->device, training_operations(operation_of(OptimizerKind::adamw)));
    Recipe recipe = parse_recipe("", "bench step", o->overrides, RecipeUse::ranks);
    o->step.settings = settle(recipe);
    o->step.distributed = recipe.distributed;
    o->step.activation_checkpointing |= recipe.distributed.activation_checkpointing;
    World world(launch, comm_options(recipe));
    o->step.device = device_of_rank(chosen, world, {.shared = o->share_device});
    o->step.dtype = parse_weight_dtype(o->dtype);
    o->step.config = through_links(o->step.config);
    want_same_inputs(world, inputs_of_step(o->step, recipe));
    o->step.on_step = [steps = o->step.steps](std::int64_t step, double seconds) {
      log_info("bench step: step ", step, " of ", steps, " took ", seconds, " s",
               step == 0 && steps > 1 ? " (left out of the median)" : "");
    };
    log_info("bench step: building the model of ", o->step.config.string());
    const BenchStepResult result = bench_step(o->step, world);
    if (world.rank() > 0) return;
    print_step(o->step, result);
    if (o->json) std::cout << step_json(o->step, result).dump() << std::endl;
  });
}

void add_op(Command& bench) {
  struct Options {
    BenchOpOptions op;
    std::string dtype = "f32", device = "cpu", cases;
  };
  auto o = std::make_shared<Options>();
  Command* command =
      bench.add_subcommand("op", "Single operations: correctness, time and distance to the floor");
  command->footer("Columns:\n" + std::string(bench_op_legend()) + "\n" +
                  std::string(bench_cuda_legend(false)) + "\n" + std::string(bench_cuda_legend(true)));
  command->add_option("--op", o->op.op, "one operation; default: all");
  command->add_option("--variant", o->op.variant, "cases whose variant contains this")->capture_default_str();
  command
      ->add_option("--dtype", o->dtype, "f32, bf16 or f64: of operands; sums have their accumulation dtype")
      ->capture_default_str();
  command->add_option("--repeats", o->op.repeats, "timed calls of each case")
      ->capture_default_str()
      ->check(in_range(1, 1'000'000));
  command
      ->add_option(
          "--device", o->device,
          "cpu, cuda (the operations that have CUDA kernels), or auto (cuda if there is a device and "
          "every operation named has CUDA kernels, else cpu)")
      ->capture_default_str();
  command->add_flag("--cold", o->op.cold, "empty the caches before every repeat");
  command->add_flag("--small", o->op.sizes.small,
                    "sizes that finish in milliseconds, to see that everything works");
  command->add_flag("--nano", o->op.sizes.nano,
                    "on cuda: sizes of Nemotron 3 Nano and 8,192 tokens; on the software GPU few tokens");
  command->add_flag("!--no-verify", o->op.verify,
                    "do not compare results, which takes long for large sizes; times alone");
  command->add_flag("--markdown", o->op.markdown,
                    "on cuda, counted: a table of the kernels of each case, against the rates of an H100");
  command->add_option("--cases", o->cases,
                      "with --markdown: a file to add a line to for each case, for bench nano");
  command->add_flag("--json", o->op.json,
                    "one JSON object a line: the machine and its rates, then each case");
  command->callback([o] {
    o->op.cases = o->cases;
    o->op.sizes.dtype = parse_weight_dtype(o->dtype);
    const DeviceChoice choice = parse_device(o->device);
    const bool those_there_are = choice == DeviceChoice::cuda && o->op.op.empty();
    o->op.sizes.device = choose_device(
        choice, those_there_are ? std::vector<std::string_view>{} : benched_operations(o->op.op),
        "--device " + o->device);
    require(bench_op(o->op, std::cout), "bench op: a case failed its verification (not ok above)");
  });
}

void add_nano(Command& bench) {
  auto cases = std::make_shared<std::string>();
  Command* command = bench.add_subcommand(
      "nano", "Estimate of a training step of Nemotron 3 Nano on an H100 from counted kernels, as Markdown");
  command->add_option("--cases", *cases, "what bench op --nano --markdown --cases wrote")->required();
  command->callback([cases] { std::cout << nano_estimate(read_counted_cases(*cases)); });
}

/// "4k" is 4096; k, M and G are powers of 1024.
std::int64_t parse_bytes(const std::string& text) {
  std::int64_t bytes = 0;
  const char* const last = text.data() + text.size();
  auto [end, error] = std::from_chars(text.data(), last, bytes);
  constexpr std::string_view units = "kMG";
  const auto unit = end == last ? std::string_view::npos : units.find(*end);
  if (unit != std::string_view::npos) ++end;
  const int shift = unit == std::string_view::npos ? 0 : 10 * (static_cast<int>(unit) + 1);
  require(error == std::errc() && end == last && bytes > 0 && bytes <= (std::int64_t{1} << 40) >> shift,
          "--sizes: want a number of bytes such as 1000, 4k, 16M or 1G, got '", text, "'");
  return bytes << shift;
}

nlohmann::json comm_json(const BenchCommCase& c) {
  return {{"group", c.group},
          {"ranks", c.ranks},
          {"collective", name_of(c.operation)},
          {"bytes", c.bytes},
          {"calls", c.calls},
          {"seconds", c.seconds},
          {"algorithm_bytes_per_second", c.algorithm_bandwidth},
          {"bus_bytes_per_second", c.bus_bandwidth},
          {"copy_fraction", c.copy_fraction},
          {"wrong", c.wrong}};
}

void print_comm(const BenchCommCase& c) {
  std::cout << std::left << std::setw(14) << c.group << std::right << std::setw(4) << c.ranks << "  "
            << std::left << std::setw(15) << name_of(c.operation) << std::right << std::setw(12) << c.bytes
            << std::fixed << std::setprecision(1) << std::setw(12) << c.seconds * 1e6 << std::setprecision(3)
            << std::setw(10) << c.algorithm_bandwidth * 1e-9 << std::setw(10) << c.bus_bandwidth * 1e-9
            << std::setw(10) << c.copy_fraction << std::setw(7) << c.wrong << std::endl;
}

void add_comm(Command& bench) {
  struct Options {
    BenchCommOptions comm;
    std::string grid, sizes = "1k:256M", dtype = "f32", device = "cpu";
    bool share_device = false, json = false;
  };
  auto o = std::make_shared<Options>();
  Command* command = bench.add_subcommand(
      "comm", "Collectives of the ranks that mpirun starts: correctness, latency and bandwidth");
  command->footer("Columns:\n" + std::string(bench_comm_legend()));
  command->add_option("--grid", o->grid, "process grid of all ranks: tp=2,dp=4; default: dp over all ranks");
  command
      ->add_option("--group", o->comm.groups, "dp, tp, ...; may be repeated; default: each set of ranks once")
      ->allow_extra_args(false);
  command->add_option("--collective", o->comm.kinds, "all_reduce, ...; may be repeated; default: all")
      ->allow_extra_args(false);
  command->add_option("--sizes", o->sizes, "bytes, first:last, or one size")->capture_default_str();
  command->add_option("--factor", o->comm.factor, "each size is so many times the one before")
      ->capture_default_str()
      ->check(in_range(2, 1024));
  command->add_option("--dtype", o->dtype, "f32, bf16 or f64")->capture_default_str();
  add_device_option(*command, o->device, "cpu");
  add_share_device_option(*command, o->share_device);
  command->add_option("--seconds", o->comm.seconds, "about how long each case is timed")
      ->capture_default_str();
  command->add_flag("--json", o->json, "one JSON object a line: the machine, then each case");
  command->callback_of_ranks([o](const Launch& launch) {
    const auto colon = o->sizes.find(':');
    o->comm.least_bytes = parse_bytes(o->sizes.substr(0, colon));
    o->comm.most_bytes =
        colon == std::string::npos ? o->comm.least_bytes : parse_bytes(o->sizes.substr(colon + 1));
    o->comm.dtype = parse_weight_dtype(o->dtype);
    if (!o->grid.empty()) o->comm.grid = parse_dimensions(o->grid);
    const Device chosen = choose_device(o->device, {});
    World world(launch);
    o->comm.device = device_of_rank(chosen, world, {.shared = o->share_device});
    const bool speaks = world.rank() == 0;
    if (speaks && o->json) {
      std::cout << nlohmann::json{{"machine", to_json(describe_machine())},
                                  {"ranks", world.size()},
                                  {"nodes", world.nodes()}}
                       .dump()
                << std::endl;
    } else if (speaks) {
      std::cout << to_string(describe_machine()) << "; " << counted(world.size(), "rank") << " on "
                << counted(world.nodes(), "node") << '\n'
                << bench_comm_legend() << "group            n  collective            bytes          us"
                << "     algbw     busbw   of copy  wrong" << std::endl;
    }
    std::int64_t wrong = 0;
    bench_comm(world, o->comm, [&](const BenchCommCase& c) {
      wrong += c.wrong;
      if (!speaks) return;
      if (o->json)
        std::cout << comm_json(c).dump() << std::endl;
      else
        print_comm(c);
    });
    require(wrong == 0, "bench comm: ", wrong, " elements are wrong (above)");
  });
}

}  // namespace

void add_bench_command(Command& app) {
  Command* bench = app.add_subcommand("bench", "Benchmarks of operations, collectives and whole steps");
  bench->require_subcommand(1);
  add_comm(*bench);
  add_nano(*bench);
  add_op(*bench);
  add_step(*bench);
}

}  // namespace nemocube
