#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>

#include "core/host_wait.h"
#include "core/log.h"
#include "model/test_models.h"
#include "parallel/expert_parallel/expert_groups.h"
#include "tests/grids/grid_cases.h"
#include "tests/grids/history.h"
#include "tests/support/devices.h"
#include "tests/support/ranks.h"
#include "train/step/train_step.h"

using namespace nemocube;
using namespace nemocube::testing;

// Ten steps on process grids against one rank that gets the same microbatches.

namespace {

constexpr int steps = 10;

// Microbatch m of the `count` of a step. One has labels for a single token only. With `roomy`, half of the
// packed ones have spare rows.
TokenBatch microbatch(int step, int m, int count, const DiffusionTraining& diffusion, bool packed,
                      bool roomy) {
  const auto seed = static_cast<std::uint64_t>(1000 * step + m);
  const std::vector<std::int64_t> lengths = lengths_for(
      diffusion, packed ? std::vector<std::int64_t>{9 + m % 3, 1, 4} : std::vector<std::int64_t>{13 + m % 2});
  const std::int64_t copies = diffusion.paradigm == Paradigm::block_diff ? 2 : 1;
  const TestBatch batch = random_batch(grid_model(), lengths, seed);
  if (m == step % count)
    for (std::int64_t t = 1; t < batch.labels.numel(); ++t) batch.labels.data<std::int64_t>()[t] = -100;
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < batch.sequences.count(); ++i)
    numbers.push_back((static_cast<std::int64_t>(seed) << 32) + batch.sequences.begin(i));
  const TokenBatch tight(batch.ids, batch.labels, batch.sequences.numbered(numbers, 15 + m % 4));
  return packed && roomy && m >= count / 2 ? tight.with_capacity(19 * copies, 4 * copies, 13 * copies)
                                           : tight;
}

StepOptions step_options(int step) {
  StepOptions o;
  o.lr = 0.02 / (1 + step);
  o.weight_decay = 0.02;
  o.max_norm = 0.5;
  o.expert_bias_rate = 0.001;
  return o;
}

OptimizerOptions optimizer_options() { return {.kind = OptimizerKind::sgd, .momentum = 0.9}; }

// The global loss depends on which microbatches are under way at the same time, so several replicas do
// without.
void add_auxiliary_losses(Stack& model, bool global) {
  for (MoeMixer* moe : model.moe_layers()) {
    moe->router().aux_loss_coef = 0.02;
    moe->router().seq_aux_loss_coef = 0.03;
    if (global) moe->router().global_aux_loss_coef = 0.01;
    moe->router().z_loss_coef = 0.01;
  }
}

/// What is not trained. With `base` low-rank adapters are trained, with dropout before or behind them.
enum class Frozen {
  nothing,
  all_but_norms_and_experts,
  up_to_block_2,
  all_but_head,
  every_second_tensor,
  base_pre,
  base_post
};

struct Task {
  DType dtype;
  bool packed, global_loss;
  Frozen frozen = Frozen::nothing;
  MtpTraining mtp = {};
  bool pruned = false;
  std::string family = {};  ///< of family_models(); empty: grid_model() or pruned_grid_model()
  double noise_alpha = 0;   ///< of noise on the embeddings
  /// Half as many heads and longer chunks: the software GPU spends most of a step in the scans.
  bool short_scans = false;
  int microbatches = 8;  ///< of a step, over all replicas
  /// The head's weight is that of the embeddings, blocks have a norm behind the mixer, and norms are of
  /// another kind.
  bool tied = false;
  bool shared_norm = false;           ///< the last two blocks work on the same rows
  std::int64_t shared_in_stages = 0;  ///< share_norms() for so many stages; 0: not called
  auto operator<=>(const Task&) const = default;
};

bool is_frozen(const TensorSpec& spec, Frozen frozen, std::size_t number) {
  switch (frozen) {
    case Frozen::nothing:
      return false;
    case Frozen::all_but_norms_and_experts:
      return !spec.name.ends_with("norm.weight") && spec.name.find("experts") == spec.name.npos;
    case Frozen::up_to_block_2:
      return spec.name.find("embeddings") != spec.name.npos || spec.id.block_of_model().value_or(3) <= 2;
    case Frozen::all_but_head:
      return spec.name != "lm_head.weight";
    case Frozen::every_second_tensor:
      return number % 2 == 0;
    case Frozen::base_pre:
    case Frozen::base_post:
      return spec.factor == LoraFactor::none;
  }
  return false;
}

ModelSetup model_of(const Task& task) {
  ModelSetup config = task.pruned ? pruned_grid_model() : grid_model();
  for (const FamilyModel& family : family_models())
    if (family.name == task.family) {
      config = family.config;
      config.choices.diffusion = family.diffusion;
    }
  if (task.short_scans) config.config.mamba.num_heads = 4, config.config.mamba.chunk_size = 8;
  config.config.tie_word_embeddings = task.tied;
  if (task.tied) {
    config.config.residual = Residual::norm_before_and_after;
    config.config.norm = task.mtp.depths > 0 ? NormKind::rmsnorm_one_plus_w : NormKind::layernorm;
  }
  if (task.shared_norm) own_config(config.config, 7).residual = Residual::shared_norm;
  if (task.shared_in_stages > 0) share_norms(config.config, task.shared_in_stages);
  config.train_mtp(task.mtp);
  config.choices.noise = {task.noise_alpha, 9};
  if (task.frozen == Frozen::base_pre || task.frozen == Frozen::base_post)
    config.choices.lora = adapters_of_all(
        config, task.frozen == Frozen::base_pre ? DropoutPosition::pre : DropoutPosition::post);
  const auto specs = tensor_specs(config);
  for (std::size_t i = 0; i < specs.size(); ++i)
    if (is_frozen(specs[i], task.frozen, i)) config.choices.frozen.insert(specs[i].id);
  return config;
}

History on_one_rank(const Task& task) {
  const ModelSetup setup = model_of(task);
  Stack model(setup, task.dtype, Device::cpu);
  initialise(model, 3);
  add_auxiliary_losses(model, task.global_loss);
  ParallelModel parallel(model);
  Optimizer optimizer(model.parameters(), optimizer_options());
  History history;
  for (int s = 0; s < steps; ++s) {
    std::vector<TokenBatch> batches;
    for (int m = 0; m < task.microbatches; ++m)
      batches.push_back(microbatch(s, m, task.microbatches, setup.choices.diffusion, task.packed, false));
    history.steps.push_back(train_step(parallel, optimizer, batches, step_options(s)));
  }
  history.weights = weights_of(model);
  return history;
}

/// Computed once for each kind.
const History& reference(const Task& task) {
  static std::map<Task, History> known;
  const auto found = known.find(task);
  if (found != known.end()) return found->second;
  return known.emplace(task, history_of_rank_0([&] { return on_one_rank(task); })).first->second;
}

/// The largest difference between what this rank owns and the weights of one rank.
double weight_error(const Stack& model, const History& want) {
  double worst = 0;
  for (const Parameter& p : model.parameters().all()) {
    const std::vector<double> own = p.own.to_vector();
    const std::vector<double> whole = want.weights.at(p.name).to_vector();
    p.shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i)
        worst = std::max(worst, std::abs(own[static_cast<std::size_t>(local + i)] -
                                         whole[static_cast<std::size_t>(global + i)]));
    });
  }
  return worst;
}

double relative(double got, double want) { return std::abs(got / want - 1); }

double sum_of(const Tensor& t) {
  const std::vector<double> values = t.to_vector();
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// This rank's part of the model on a grid.
struct OnGrid {
  OnGrid(const GridCase& c, const Task& task, Device device)
      : packed(c.packed),
        microbatches(task.microbatches),
        plan(plan_of(c, model_of(task))),
        place(place_of(plan.grid, test_world().rank())),
        groups(test_world(), make_grid(plan.grid), used_groups(plan, model_of(task))),
        model(model_of(task), task.dtype, Device::meta, part_of(plan, model_of(task), place)),
        parallel(model, plan, groups, device) {
    model.activation_checkpointing = c.checkpointing;
    initialise(model, 3);
    parallel.data().spread_values();
    add_auxiliary_losses(model, task.global_loss);
    optimizer.emplace(model.parameters(), optimizer_options());
  }

  std::int64_t own_microbatches() const { return microbatches / plan.grid.dp(); }

  StepResult step(int s) {
    std::vector<TokenBatch> batches;
    const int dp = static_cast<int>(plan.grid.dp());
    for (int m = 0; m < microbatches; m += dp)
      batches.push_back(microbatch(s, m + static_cast<int>(place.dp(plan.grid)), microbatches,
                                   model.choices().diffusion, packed, true));
    return train_step(parallel, *optimizer, batches, step_options(s));
  }

  bool packed;
  int microbatches;  // of a step, over all replicas
  ParallelPlan plan;
  GridPlace place;
  ProcessGroups groups;
  Stack model;
  ParallelModel parallel;
  std::optional<Optimizer> optimizer;
};

/// The waits of a step for the device, without those of messages, which depend on the backend.
std::map<std::string, std::int64_t> waits_without_messages() {
  auto waits = host_waits();
  waits.erase("staged message");
  return waits;
}

std::string text_of(const std::map<std::string, std::int64_t>& waits) {
  std::string text;
  for (const auto& [name, count] : waits) text += cat(text.empty() ? "" : ", ", name, " ", count);
  return text;
}

/// Those that a step needs: for its result, and for the rows of experts on several ranks. The rows of all
/// experts are all choices, however many fall on each.
std::map<std::string, std::int64_t> needed_waits(const OnGrid& ranks, const GridCase& c) {
  std::map<std::string, std::int64_t> waits{{"step result", 1}};
  const MtpTraining& mtp = ranks.model.choices().mtp;
  std::int64_t moe = std::ssize(ranks.model.moe_layers());
  if (mtp.repeated && ranks.model.part().head()) moe += mtp.depths - 1;
  const bool all_here = c.grid.ep == 1 && c.dispatcher == DispatcherKind::allgather;
  if (c.grid.ep * c.grid.expt_tp > 1 && moe > 0 && !all_here)
    waits[expert_rows_wait] = moe * ranks.own_microbatches();
  return waits;
}

/// Frozen weights are those of before, divided like all others, and have no gradients.
void check_frozen(const Stack& model) {
  Stack fresh(model.setup(), model.dtype(), Device::cpu);
  initialise(fresh, 3);
  for (const Parameter& p : model.parameters().all()) {
    if (p.trainable || !p.node) continue;
    CHECK(p.name.find("lora_") == p.name.npos);
    CAPTURE(p.name);
    CHECK_FALSE(p.own_gradient);
    CHECK_FALSE(p.node->filled());
    const Tensor own = p.own.to(Device::cpu);
    const std::vector<double> whole = fresh.parameters().get(p.name).value.to_vector();
    const std::vector<double> values = own.to_vector();
    std::int64_t other = 0;
    p.shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i)
        other += values[static_cast<std::size_t>(local + i)] != whole[static_cast<std::size_t>(global + i)];
    });
    CHECK(other == 0);
  }
}

/// The first `count` steps on a grid of devices, and on one rank on the CPU. Weights are compared after all
/// steps.
void compare_with_one_rank(const GridCase& c, Task task, double tolerance, Device device, int count) {
  task.short_scans = device.is_cuda();
  if (device.is_cuda() && c.grid.dp() * c.grid.pp <= 4) task.microbatches = 4;
  const History& want = reference(task);
  OnGrid ranks(c, task, device);
  for (int s = 0; s < count; ++s) {
    CAPTURE(s);
    reset_host_waits();
    const StepResult got = ranks.step(s);
    if (device.is_cuda()) {
      CHECK(text_of(waits_without_messages()) == text_of(needed_waits(ranks, c)));
      CHECK(host_waits().contains("staged message") != test_world().uses_nccl());
    }
    const StepResult& one = want.steps[static_cast<std::size_t>(s)];
    CHECK(got.outcome == one.outcome);
    CHECK(got.label_tokens == one.label_tokens);
    CHECK(relative(got.loss, one.loss) < tolerance);
    CHECK(relative(got.grad_norm, one.grad_norm) < tolerance);
    REQUIRE(got.mtp_losses.size() == static_cast<std::size_t>(task.mtp.depths));
    for (std::size_t k = 0; k < got.mtp_losses.size(); ++k)
      CHECK(relative(got.mtp_losses[k], one.mtp_losses[k]) < tolerance);
    REQUIRE(got.auxiliary_losses.size() == one.auxiliary_losses.size());
    for (std::size_t i = 0; i < one.auxiliary_losses.size(); ++i) {
      CAPTURE(one.auxiliary_losses[i].first);
      CHECK(relative(got.auxiliary_losses[i].second, one.auxiliary_losses[i].second) < tolerance);
    }
    REQUIRE(got.expert_counts.size() == one.expert_counts.size());
    for (std::size_t i = 0; i < one.expert_counts.size(); ++i) {
      if (task.dtype != DType::bf16)
        CHECK_BITS(got.expert_counts[i], one.expert_counts[i]);
      else  // rounded scores may change places
        CHECK(sum_of(got.expert_counts[i]) == sum_of(one.expert_counts[i]));
    }
  }
  if (count == steps) CHECK(weight_error(ranks.model, want) < tolerance);
  if (task.frozen != Frozen::nothing) check_frozen(ranks.model);
}

void compare_with_one_rank(const GridCase& c, DType dtype, double tolerance, Device device = Device::cpu,
                           int count = steps, Frozen frozen = Frozen::nothing, const MtpTraining& mtp = {}) {
  compare_with_one_rank(c, {dtype, c.packed, c.grid.dp() == 1, frozen, mtp}, tolerance, device, count);
}

bool all_cases() {
  const char* wish = std::getenv("NEMOCUBE_GRIDS");
  return wish && std::string_view(wish) == "all";
}

std::vector<GridCase> wished_cases(const char* otherwise = "") {
  const char* wish = std::getenv("NEMOCUBE_GRIDS");
  const auto cases = grid_cases(test_world().size(), wish ? wish : otherwise);
  REQUIRE(!cases.empty());
  return cases;
}

}  // namespace

TEST_CASE(
    "grids: steps on another device have the bits of the CPU, and the host waits for their result and for "
    "the rows "
    "of experts") {
  for (const GridCase& c : wished_cases())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(name_of(c));
      CAPTURE(dtype);
      const Task task{dtype, c.packed, c.grid.dp() == 1};
      OnGrid there(c, task, Device::guard), here(c, task, Device::cpu);
      const auto wanted = needed_waits(there, c);
      for (int s = 0; s < 2; ++s) {
        CAPTURE(s);
        reset_host_waits();
        const StepResult got = there.step(s);
        CHECK(waits_without_messages() == wanted);
        reset_host_waits();
        const StepResult want = here.step(s);
        CHECK(host_waits().empty());
        CHECK(got.outcome == want.outcome);
        CHECK(got.loss == want.loss);
        CHECK(got.grad_norm == want.grad_norm);
        CHECK(got.auxiliary_losses == want.auxiliary_losses);
        for (std::size_t i = 0; i < want.expert_counts.size(); ++i)
          CHECK_BITS(got.expert_counts[i], want.expert_counts[i]);
      }
      const auto &a = there.model.parameters().all(), &b = here.model.parameters().all();
      REQUIRE(a.size() == b.size());
      for (std::size_t i = 0; i < a.size(); ++i) {
        CAPTURE(a[i].name);
        CHECK_BITS(a[i].own.clone(), b[i].own.clone());
      }
    }
}

// Grids take turns: of the kinds of each of these three cases one grid has some, the next the others. With
// NEMOCUBE_GRIDS=all each grid has all.
TEST_CASE("grids: steps with frozen weights are those of one rank, and leave them as they are") {
  bool odd = false;
  for (const GridCase& c : wished_cases()) {
    CAPTURE(name_of(c));
    const auto compare = [&](Frozen frozen) {
      CAPTURE(static_cast<int>(frozen));
      compare_with_one_rank(c, DType::f64, 1e-12, Device::cpu, steps, frozen);
    };
    if (!odd || all_cases()) {
      compare(Frozen::all_but_norms_and_experts);
      compare(Frozen::up_to_block_2);
    }
    if (odd || all_cases()) {
      compare(Frozen::all_but_head);
      compare(Frozen::every_second_tensor);
    }
    odd = !odd;
  }
}

TEST_CASE("grids: steps with low-rank adapters and dropout are those of one rank") {
  bool odd = false;
  for (const GridCase& c : wished_cases()) {
    CAPTURE(name_of(c));
    const auto compare = [&](Frozen frozen, const MtpTraining& mtp) {
      CAPTURE(static_cast<int>(frozen));
      compare_with_one_rank(c, DType::f64, 1e-12, Device::cpu, steps, frozen, mtp);
    };
    if (!odd || all_cases()) {
      compare(Frozen::base_pre, {});
      compare(Frozen::base_post, {});
    }
    if (odd || all_cases()) compare(Frozen::base_post, {2, false, 0.3});
    odd = !odd;
  }
}

TEST_CASE("grids: ten steps on every grid are those of one rank") {
  for (const GridCase& c : wished_cases()) {
    CAPTURE(name_of(c));
    log_info("grid: ", name_of(c));
    compare_with_one_rank(c, DType::f64, 1e-12);
    compare_with_one_rank(c, DType::f32, 1e-5);
  }
}

TEST_CASE("grids: steps with multi-token prediction are those of one rank") {
  bool odd = false;
  for (const GridCase& c : wished_cases()) {
    CAPTURE(name_of(c));
    log_info("grid with multi-token prediction: ", name_of(c));
    const auto compare = [&](Frozen frozen, bool repeated) {
      CAPTURE(static_cast<int>(frozen));
      CAPTURE(repeated);
      compare_with_one_rank(c, DType::f64, 1e-12, Device::cpu, steps, frozen, {2, repeated, 0.3});
    };
    if (!odd || all_cases()) {
      compare(Frozen::nothing, false);
      compare_with_one_rank(c, DType::f32, 1e-5, Device::cpu, 3, Frozen::nothing, {1, false, 0.3});
    }
    if (odd || all_cases()) {
      compare(Frozen::nothing, true);
      compare(Frozen::every_second_tensor, true);
    }
    odd = !odd;
  }
}

TEST_CASE("grids: steps of a model whose blocks differ in size are those of one rank") {
  for (const GridCase& c : wished_cases()) {
    CAPTURE(name_of(c));
    log_info("grid with blocks of different sizes: ", name_of(c));
    Task task{.dtype = DType::f64, .packed = c.packed, .global_loss = c.grid.dp() == 1, .pruned = true};
    if (all_cases()) compare_with_one_rank(c, task, 1e-12, Device::cpu, steps);
    task.mtp = {2, true, 0.3};
    compare_with_one_rank(c, task, 1e-12, Device::cpu, steps);
    task.frozen = Frozen::base_post;
    if (all_cases()) compare_with_one_rank(c, task, 1e-12, Device::cpu, steps);
  }
}

TEST_CASE("grids: steps with a tied head and other norms and residual forms are those of one rank") {
  bool odd = false;
  for (const GridCase& c : wished_cases()) {
    CAPTURE(name_of(c));
    log_info("grid with a tied head: ", name_of(c));
    Task task{.dtype = DType::f64, .packed = c.packed, .global_loss = c.grid.dp() == 1, .tied = true};
    task.shared_norm = c.grid.pp * c.chunks <= 4;  // with more stages a block is alone in its stage
    if (!odd || all_cases()) compare_with_one_rank(c, task, 1e-12, Device::cpu, steps);
    task.mtp = {2, true, 0.3};
    if (odd || all_cases()) compare_with_one_rank(c, task, 1e-12, Device::cpu, steps);
    task.frozen = Frozen::up_to_block_2;
    if (all_cases()) compare_with_one_rank(c, task, 1e-12, Device::cpu, steps);
    odd = !odd;
  }
}

TEST_CASE("families: steps of models of every family on grids are those of one rank") {
  bool odd = false;
  std::size_t number = 0;
  for (const GridCase& of : wished_cases()) {
    for (const auto& [family, config, diffusion] : family_models_of(of, number++, all_cases())) {
      const GridCase c = config.has_experts() ? of : without_experts(of);
      CAPTURE(name_of(c));
      CAPTURE(family);
      log_info("grid with a model of family ", family, ": ", name_of(c));
      Task task{.dtype = DType::f64, .packed = c.packed, .global_loss = c.grid.dp() == 1};
      task.family = family;
      if (!odd || all_cases()) compare_with_one_rank(c, task, 1e-12, Device::cpu, steps);
      task.frozen = Frozen::base_post;
      if (odd || all_cases()) compare_with_one_rank(c, task, 1e-12, Device::cpu, steps);
    }
    odd = !odd;
  }
}

TEST_CASE("grids: steps of mixers on one norm are those of one rank") {
  bool odd = false;
  for (const GridCase& c : wished_cases()) {
    const std::int64_t stages = c.grid.pp * c.chunks;
    if (stages > 4) continue;
    CAPTURE(name_of(c));
    log_info("grid with mixers on one norm: ", name_of(c));
    Task task{.dtype = DType::f64, .packed = c.packed, .global_loss = c.grid.dp() == 1};
    task.shared_in_stages = stages <= 2 ? 2 : 4;
    if (!odd || all_cases()) compare_with_one_rank(c, task, 1e-12, Device::cpu, steps);
    task.frozen = Frozen::every_second_tensor;
    if (all_cases()) compare_with_one_rank(c, task, 1e-12, Device::cpu, steps);
    task.frozen = Frozen::base_post;
    if (odd || all_cases()) compare_with_one_rank(c, task, 1e-12, Device::cpu, steps);
    odd = !odd;
  }
}

TEST_CASE("grids: steps with noise on the embeddings are those of one rank") {
  for (const GridCase& c : wished_cases()) {
    CAPTURE(name_of(c));
    log_info("grid with noise: ", name_of(c));
    Task task{
        .dtype = DType::f64, .packed = c.packed, .global_loss = c.grid.dp() == 1, .mtp = {2, false, 0.3}};
    const Task clean = task;
    task.noise_alpha = 3;
    CHECK(relative(reference(task).steps[0].loss, reference(clean).steps[0].loss) > 1e-6);
    compare_with_one_rank(c, task, 1e-12, Device::cpu, steps);
    task.frozen = Frozen::up_to_block_2;
    if (all_cases()) compare_with_one_rank(c, task, 1e-12, Device::cpu, steps);
  }
}

// Products and sums of a device have orders of their own: f32 differs by some 1e-7 of a value, which two
// steps raise. bf16 rounds each of the activations to 2^-9 of its value, and other sums round elsewhere: a
// loss is their mean, a gradient norm multiplies the errors of all layers.
TEST_CASE("grids: steps on grids of CUDA devices are those of one rank on the CPU" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const GridCase& c : wished_cases("cuda")) {
    CAPTURE(name_of(c));
    log_info("grid on cuda: ", name_of(c));
    compare_with_one_rank(c, DType::f32, 1e-5, cuda_device(), 2, Frozen::base_post);
    // All weights at once with all that training can add.
    const Task noisy{.dtype = DType::f32,
                     .packed = c.packed,
                     .global_loss = c.grid.dp() == 1,
                     .mtp = {2, true, 0.3},
                     .noise_alpha = 3};
    compare_with_one_rank(c, noisy, 1e-5, cuda_device(), 2);
    if (all_cases()) compare_with_one_rank(c, DType::bf16, 0x1p-5, cuda_device(), 2);
  }
}
