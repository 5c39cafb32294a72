#include "train/cost/step_time.h"

#include <doctest/doctest.h>

#include <string_view>

#include "model/block_passes.h"
#include "model/test_models.h"
#include "tests/support/message_of.h"
#include "train/ranks/plan_model.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// Rates by which times can be formed by hand: 1 Gflop/s and 1 GB/s, all of which is reached.
StepTimeOptions round_rates() {
  StepTimeOptions o;
  o.gpu.tensor_flops = o.gpu.dram_bytes = 1e9;
  o.reached = {1, 1, 1, 1, 1, 1, 1, 1};
  o.links = {8, 1e6, 1e5, 0, 0};
  return o;
}

struct Wish {
  const char* pattern = "-";
  std::int64_t ranks = 1, pp = 1, ep = 1, microbatches = 1, gpus_of_node = 8;
  bool ddp = false, checkpointing = false;
  std::int64_t mtp_depths = 0, tp = 1;
  bool sequence_parallel = false;
};

StepTime time_of(const Wish& w, const ModelSetup& config, StepTimeOptions o);

/// Of 64 tokens a microbatch, in bf16, with SGD without momentum.
StepTime time_of(const Wish& w, StepTimeOptions o = round_rates()) {
  ModelSetup config = tiny_config(w.pattern);
  config.train_mtp({w.mtp_depths, false, 0.3});
  return time_of(w, config, o);
}

StepTime time_of(const Wish& w, const ModelSetup& config, StepTimeOptions o) {
  DistributedSection section;
  section.tp_size = w.tp;
  section.sequence_parallel = w.sequence_parallel;
  section.pp_size = w.pp;
  section.ep_size = w.ep;
  if (w.ddp) section.strategy = Strategy::ddp;
  if (w.pp > 1) section.pipeline = PipelineSection{};
  StepLoad load;
  load.dtype = DType::bf16;
  load.microbatch = Sequences::uniform(1, 64);
  load.microbatches = w.microbatches;
  load.checkpointing = w.checkpointing;
  const ParallelSettings settings{.dispatcher = DispatcherKind::alltoall};
  o.links.gpus_of_node = w.gpus_of_node;
  RunCosts costs(config, plan_model(section, settings, rank_sizes(section, w.ranks), config), load,
                 {.kind = OptimizerKind::sgd, .momentum = 0});
  return step_time(costs, o);
}

double part(const std::vector<StepTime::Part>& parts, const char* name) {
  double seconds = 0;
  for (const StepTime::Part& p : parts)
    if (p.name == name) seconds += p.seconds;
  return seconds;
}

double product(double rows, double in, double out) {
  const double operations = 2 * rows * in * out, own = 2 * rows * (in + out), weight = in * out;
  return 1e-9 * (2 * std::max(operations, own + 2 * weight) + std::max(operations, own + 8 * weight));
}

}  // namespace

TEST_CASE("step time: of an MLP block, its products, bytes and update are what their sizes say") {
  const ModelConfig c = tiny_config("-");
  const auto h = static_cast<double>(c.hidden_size), wide = static_cast<double>(c.mlp.intermediate_size),
             vocabulary = static_cast<double>(c.vocab_size);
  const StepTime t = time_of({});
  const double products = product(64, h, wide) + product(64, wide, h) + product(64, h, vocabulary);
  CHECK(part(t.compute, "products") == doctest::Approx(products));
  CHECK(part(t.compute, "memory") ==
        doctest::Approx(1e-9 * 64 * (8 * 2 * h + 5 * 2 * wide + (8 + 2 * 2) * vocabulary)));
  // Masters are read and written in f32, gradients read twice, a copy of bf16 written.
  const double parameters = 2 * vocabulary * h + 2 * h * wide + 2 * h;
  CHECK(part(t.compute, "optimizer") == doctest::Approx(1e-9 * parameters * (4 * 4 + 2)));
  double sum = 0;
  for (const StepTime::Part& p : t.compute) sum += p.seconds;
  CHECK(t.seconds == doctest::Approx(sum));
  CHECK(t.exposed.empty());
  CHECK(t.hidden == 0);
  CHECK(t.idle == 0);
  CHECK(t.tokens == 64);
}

TEST_CASE("step time: where bytes cost nothing, the passes take the model's own operations") {
  StepTimeOptions o = round_rates();
  o.gpu.dram_bytes = 1e30;
  for (const auto& [pattern, depths] :
       {std::pair{"M", 0}, std::pair{"E", 0}, std::pair{"-", 0}, std::pair{"*", 0}, std::pair{"E", 2}}) {
    CAPTURE(pattern);
    CAPTURE(depths);
    const ModelConfig c = tiny_config(pattern);
    const StepTime t = time_of({.pattern = pattern, .mtp_depths = depths}, o);
    // The convolution counts as bytes. Of attention's products between tokens backward forms five for two.
    const double conv = pattern == std::string_view("M")
                            ? 2.0 * static_cast<double>(c.mamba.conv_dim() * c.mamba.conv_kernel)
                            : 0,
                 attention = part(t.compute, "attention"), again = attention - attention * 3 / 3.5;
    CHECK(t.seconds - again == doctest::Approx(1e-9 * (t.model_flops - 3 * t.tokens * conv)));
  }
}

TEST_CASE("step time: of blocks of different sizes, each by its own") {
  StepTimeOptions o = round_rates();
  o.gpu.dram_bytes = 1e30;
  ModelSetup c = tiny_config("E-E-");
  own_config(c.config, 2).moe.n_routed_experts = 8, own_config(c.config, 2).moe.num_experts_per_tok = 4,
                       own_config(c.config, 2).moe.intermediate_size = 5;
  own_config(c.config, 3).mlp.intermediate_size = 40;
  const StepTime t = time_of({}, c, o);
  CHECK(t.seconds == doctest::Approx(1e-9 * t.model_flops));
  for (const char* frozen :
       {"backbone.layers.2.mixer.experts.up_proj", "backbone.layers.3.mixer.up_proj.weight"})
    c.choices.frozen.insert(named(frozen));
  const StepTime less = time_of({}, c, o);
  CHECK(less.seconds == doctest::Approx(1e-9 * less.model_flops));
  CHECK(t.seconds - less.seconds == doctest::Approx(2e-9 * 64 * 12 * (4 * 5 + 40)));
}

TEST_CASE("step time: each microbatch takes as long, and checkpointing adds the blocks' forward passes") {
  const StepTime one = time_of({}), four = time_of({.microbatches = 4});
  CHECK(part(four.compute, "products") == doctest::Approx(4 * part(one.compute, "products")));
  CHECK(part(four.compute, "optimizer") == doctest::Approx(part(one.compute, "optimizer")));
  CHECK(four.tokens == 256);
  CHECK(part(one.compute, "recomputed") == 0);
  const StepTime again = time_of({.checkpointing = true});
  CHECK(again.seconds == doctest::Approx(one.seconds + part(again.compute, "recomputed")));
  CHECK(part(again.compute, "recomputed") > 0);
}

TEST_CASE(
    "step time: gradients are hidden behind the passes as far as these are long, on links of their own "
    "rates") {
  StepTimeOptions o = round_rates();
  const Wish ddp{.ranks = 2, .ddp = true};
  const StepTime behind = time_of(ddp, [&] {
    o.links.node_bytes = 1e9;
    return o;
  }());
  CHECK(behind.hidden > 0);
  CHECK(part(behind.exposed, "data parallel") == 0);
  const StepTime slow = time_of(ddp);  // a thousand times
  double passes = -part(slow.compute, "optimizer");
  for (const StepTime::Part& p : slow.compute) passes += p.seconds;
  CHECK(slow.hidden == doctest::Approx(passes));
  CHECK(part(slow.exposed, "data parallel") + slow.hidden == doctest::Approx(1000 * behind.hidden));
  // Each rank on a machine of its own: a tenth of the rate.
  const StepTime apart = time_of({.ranks = 2, .gpus_of_node = 1, .ddp = true});
  CHECK(part(apart.exposed, "data parallel") + apart.hidden == doctest::Approx(10000 * behind.hidden));
}

TEST_CASE(
    "step time: experts' exchanges wait; of six ranks on two machines three fifths go through the network") {
  const Wish experts{.pattern = "E", .ranks = 6, .ep = 6};
  const StepTime near = time_of(experts);
  CHECK(part(near.compute, "experts") > 0);
  CHECK(part(near.exposed, "ep") > 0);
  Wish apart = experts;
  apart.gpus_of_node = 3;
  CHECK(part(time_of(apart).exposed, "ep") == doctest::Approx(part(near.exposed, "ep") * 10 * 3 / 5));
}

TEST_CASE("step time: a pipeline of equal stages idles as its schedule does") {
  const Wish w{.pattern = "--------", .ranks = 2, .pp = 2, .microbatches = 4};
  StepTimeOptions o = round_rates();
  o.links = {8, 1e15, 1e15, 0, 0};
  const StepTime t = time_of(w, o);
  double passes = -part(t.compute, "optimizer");
  for (const StepTime::Part& p : t.compute) passes += p.seconds;
  // The last stage has the head, too, which makes it the slower one: the other's first and last passes are
  // its wait.
  CHECK(t.idle > 0);
  CHECK(t.idle < passes / 4);
  CHECK(t.seconds == doctest::Approx(passes + t.idle + part(t.compute, "optimizer")));
}

namespace {

/// Operations, forward and backward, of a product of which the weight's gradient is formed or not.
double operations(double rows, double in, double out, bool trained) {
  return (trained ? 6 : 4) * rows * in * out;
}

StepTimeOptions free_bytes() {
  StepTimeOptions o = round_rates();
  o.gpu.dram_bytes = 1e30;
  o.links = {8, 1e30, 1e30, 0, 0};
  return o;
}

}  // namespace

TEST_CASE("step time: the passes of multi-token prediction are those of what is trained") {
  // All but the head and what comes behind the first depth's eh_proj; with adapters of eh_proj and lm_head as
  // well.
  for (const bool adapted : {false, true})
    for (const char* trained : {"", "lora", "mtp.layers.0.hnorm", "mtp.layers.2.eh_proj", "mtp.layers.2.norm",
                                "mtp.layers.3.", "embeddings"}) {
      CAPTURE(adapted);
      CAPTURE(std::string(trained));
      ModelSetup config = tiny_config("-");
      config.config.mtp_blocks = parse_pattern("--").blocks;
      config.train_mtp({2, false, 0.3});
      if (adapted)
        config = with_adapters(config, [](const std::string& m) {
          return m.find("eh_proj") != m.npos || m == "lm_head" || m.find("layers.3") != m.npos;
        });
      for (const TensorSpec& spec : tensor_specs(config))
        if (!spec.buffer && spec.name.find(trained) == spec.name.npos) config.choices.frozen.insert(spec.id);
      const StepTime t = time_of({}, config, free_bytes());
      // Gradients of what enters a layer that has none before it are counted in times, and not in operations.
      double more = 0;
      const double h = real(config.config.hidden_size), rows = 64;
      const auto rank = [&](const std::string& module) {
        const auto found = config.choices.lora.modules.find(named(module));
        return found == config.choices.lora.modules.end() ? 0.0 : real(found->second.rank);
      };
      const std::vector<BlockPass> passes = block_passes(config, ModelChunk{});
      const std::vector<DepthPasses> depths = mtp_passes(config, ModelChunk{});
      const double of_head = 2 * rows * h * (real(config.config.vocab_size) + rank("lm_head"));
      more += passes.back().backward ? 0 : of_head;
      for (std::size_t k = 0; k < depths.size(); ++k) {
        more += depths[k].blocks.back().backward ? 0 : of_head;
        if (depths[k].join.backward && !depths[k].join.input_gradient)
          more += 2 * rows * 2 * h * (h + rank(cat("mtp.layers.", 2 * k, ".eh_proj")));
      }
      CHECK(t.seconds == doctest::Approx(1e-9 * (t.model_flops + more)));
    }
}

TEST_CASE("step time: the factor of an adapter that is not cut works on each rank") {
  const double rows = 64, r = 3;
  struct Case {
    const char* module;
    bool sequence_parallel;
    double rows, in_cut, out_cut;  // what A and B have of their inputs and outputs
  };
  const ModelConfig base = tiny_config("-");
  for (const Case& c :
       {Case{"backbone.layers.0.mixer.up_proj", false, rows, 1, 2},
        Case{"backbone.layers.0.mixer.down_proj", false, rows, 2, 1}, Case{"lm_head", false, rows, 1, 2},
        Case{"mtp.layers.0.eh_proj", false, rows, 1, 1}, Case{"mtp.layers.0.eh_proj", true, rows / 2, 1, 1}})
    for (const bool trained : {false, true}) {
      CAPTURE(std::string(c.module));
      CAPTURE(c.sequence_parallel);
      CAPTURE(trained);
      ModelSetup config = base;
      config.config.mtp_blocks = parse_pattern("-").blocks;
      config.train_mtp({1, false, 0.3});
      const Wish two{.ranks = 2, .tp = 2, .sequence_parallel = c.sequence_parallel};
      const double without = time_of(two, config, free_bytes()).seconds;
      config.choices.lora.modules[named(c.module)] = {.rank = 3};
      double in = 0, out = 0;
      for (const TensorSpec& spec : tensor_specs(config)) {
        if (spec.factor == LoraFactor::none) continue;
        (spec.factor == LoraFactor::a ? in : out) = real(spec.shape[spec.factor == LoraFactor::a ? 1 : 0]);
        if (!trained) config.choices.frozen.insert(spec.id);
      }
      const double times = c.module == std::string("lm_head") ? 2 : 1;  // the head and that of the depth
      const double want = times * (operations(c.rows, in / c.in_cut, r, trained) +
                                   operations(c.rows, r, out / c.out_cut, trained));
      CHECK(1e9 * (time_of(two, config, free_bytes()).seconds - without) == doctest::Approx(want));
    }
}

TEST_CASE("step time: rates of GPUs by name") {
  CHECK(gpu_rates("h100").dram_bytes == 3.35e12);
  CHECK(gpu_rates("h200").dram_bytes == 4.8e12);
  CHECK(message_of([] { gpu_rates("tpu"); }) ==
        "no rates are known of a GPU 'tpu': want h100 (or h100-80) or h200 (or h200-141)");
}
