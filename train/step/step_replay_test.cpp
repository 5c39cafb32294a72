#include "train/step/step_replay.h"

#include <doctest/doctest.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "core/add.h"
#include "core/cuda/runtime.h"
#include "core/host_wait.h"
#include "model/test_models.h"
#include "tests/support/devices.h"
#include "train/step/train_step.h"

using namespace nemocube;
using namespace nemocube::testing;

// Steps by CUDA graphs against the same steps without.

namespace {

// With few heads and long chunks: the software GPU spends most of a step in the scans.
ModelConfig small_config(const char* pattern = "ME*-") {
  ModelConfig config = tiny_config(pattern);
  config.mamba.num_heads = 2;
  config.mamba.chunk_size = 8;
  return config;
}

struct Task {
  ModelSetup config = small_config();
  DType dtype = DType::f32;
  OptimizerKind optimizer = OptimizerKind::adamw;
  bool checkpointing = false;
  int microbatches = 1;
};

ModelConfig for_tensor_cores() {
  ModelConfig config = small_config();
  config.mamba.head_dim = 64;
  config.mamba.n_groups = 1;
  config.mamba.ssm_state_size = 128;
  return config;
}

std::unique_ptr<Stack> model_of(const Task& task) {
  auto model = std::make_unique<Stack>(task.config, task.dtype, Device::cuda);
  initialise(*model, 5);
  model->activation_checkpointing = task.checkpointing;
  for (MoeMixer* moe : model->moe_layers()) {
    moe->router().aux_loss_coef = 0.5;
    moe->router().seq_aux_loss_coef = 0.25;
    moe->router().global_aux_loss_coef = 0.125;
    moe->router().z_loss_coef = 0.5;
  }
  return model;
}

struct Trainer {
  explicit Trainer(const Task& task)
      : model(model_of(task)),
        parallel(*model),
        optimizer(model->parameters(),
                  {.kind = task.optimizer, .momentum = task.optimizer == OptimizerKind::sgd ? 0.9 : 0}) {}
  std::vector<Tensor> everything() const {
    std::vector<Tensor> all;
    for (const Parameter& p : model->parameters().all()) all.push_back(p.value.to(Device::cpu));
    for (const StateTensor& t : optimizer.state()) all.push_back(t.value.to(Device::cpu));
    return all;
  }
  StepResult step(const std::vector<TokenBatch>& batches, int number, StepReplay* replay) {
    StepOptions o;
    o.lr = 0.01 / (1 + number);
    o.weight_decay = 0.05 * number;
    o.max_norm = 0.5;
    o.expert_bias_rate = 0.01;
    o.replay = replay;
    return train_step(parallel, optimizer, batches, o);
  }
  std::unique_ptr<Stack> model;
  ParallelModel parallel;
  Optimizer optimizer;
};

// Of other lengths, ids and numbers of labels in each step.
TokenBatch microbatch(const Task& task, int step, int m) {
  const std::vector<std::vector<std::int64_t>> lengths{{9, 4, 6}, {3, 0, 1}, {21}, {5, 13}, {11}};
  const auto seed = static_cast<std::uint64_t>(10 * step + m);
  const TestBatch batch = random_batch(task.config, lengths[seed % lengths.size()], seed);
  for (std::int64_t t = 0; t < step; ++t)
    if (2 * t < batch.labels.numel()) batch.labels.data<std::int64_t>()[2 * t] = ignored_label;
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < batch.sequences.count(); ++i)
    numbers.push_back((static_cast<std::int64_t>(seed) << 32) + batch.sequences.begin(i));
  const Sequences numbered = batch.sequences.numbered(numbers, batch.sequences.longest() + step);
  return TokenBatch(batch.ids, batch.labels, numbered).with_capacity(22, 3, 22);
}

std::vector<TokenBatch> batches_of(const Task& task, int step) {
  std::vector<TokenBatch> batches;
  for (int m = 0; m < task.microbatches; ++m) batches.push_back(microbatch(task, step, m));
  return batches;
}

void check_same(const StepResult& got, const StepResult& want) {
  CHECK(got.outcome == want.outcome);
  CHECK(got.loss == want.loss);
  CHECK(got.grad_norm == want.grad_norm);
  CHECK(got.label_tokens == want.label_tokens);
  CHECK(got.mtp_losses == want.mtp_losses);
  CHECK(got.auxiliary_losses == want.auxiliary_losses);
  REQUIRE(got.expert_counts.size() == want.expert_counts.size());
  for (std::size_t i = 0; i < got.expert_counts.size(); ++i)
    CHECK_BITS(got.expert_counts[i], want.expert_counts[i]);
}

void check_same(const Trainer& got, const Trainer& want) {
  const auto a = got.everything(), b = want.everything();
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK_BITS(a[i], b[i]);
}

/// The steps `all` of a trainer with or without graphs. `also` is called behind each with its launches, and
/// those in graphs.
struct Course {
  using Also = std::function<void(int step, std::int64_t launches, std::int64_t in_graphs)>;
  Course(const Task& task, bool graphs, const std::vector<std::vector<TokenBatch>>& all,
         const Also& also = {})
      : trainer(task) {
    std::optional<StepReplay> replay;
    if (graphs) replay.emplace(trainer.parallel);
    for (int s = 0; s < static_cast<int>(all.size()); ++s) {
      const std::int64_t before = cuda::launches(),
                         in_graphs = replay ? replay->graphs().launches_in_graphs() : 0;
      reset_host_waits();
      results.push_back(trainer.step(all[static_cast<std::size_t>(s)], s, replay ? &*replay : nullptr));
      CHECK(host_waits() == std::map<std::string, std::int64_t>{{"step result", 1}});
      if (also)
        also(s, cuda::launches() - before, replay ? replay->graphs().launches_in_graphs() - in_graphs : 0);
    }
  }
  Trainer trainer;
  std::vector<StepResult> results;
};

void check_same(const Course& got, const Course& want) {
  REQUIRE(got.results.size() == want.results.size());
  for (std::size_t i = 0; i < got.results.size(); ++i) {
    CAPTURE(i);
    check_same(got.results[i], want.results[i]);
  }
  check_same(got.trainer, want.trainer);
}

/// Steps with and without graphs, compared. Returns the launches of the last step with and without.
std::pair<std::int64_t, std::int64_t> compare_steps(const Task& task, int steps) {
  std::vector<std::vector<TokenBatch>> all;
  for (int s = 0; s < steps; ++s) all.push_back(batches_of(task, s));
  std::pair<std::int64_t, std::int64_t> launches;
  const Course with(task, true, all, [&](int, std::int64_t count, std::int64_t) { launches.first = count; });
  const Course without(task, false, all,
                       [&](int, std::int64_t count, std::int64_t) { launches.second = count; });
  check_same(with, without);
  return launches;
}

}  // namespace

TEST_CASE("step graphs: steps have the bits of steps without graphs, by few launches" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  // Every two of the three choices meet in all four ways.
  for (const auto& [dtype, checkpointing, microbatches] : {std::tuple{DType::f32, false, 1},
                                                           {DType::f32, true, 3},
                                                           {DType::bf16, false, 3},
                                                           {DType::bf16, true, 1}}) {
    CAPTURE(dtype);
    CAPTURE(checkpointing);
    CAPTURE(microbatches);
    Task task;
    task.dtype = dtype;
    task.checkpointing = checkpointing;
    task.microbatches = microbatches;
    const auto [with, without] = compare_steps(task, 4);
    CHECK(with <= 4 + microbatches);
    CHECK(without > 50 * microbatches);
  }
}

TEST_CASE("step graphs: multi-token prediction" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  Task task;
  task.config = with_mtp(small_config("M*E"), 2, true);
  task.microbatches = 2;
  const auto [with, without] = compare_steps(task, 4);
  CHECK(with <= 6);
  CHECK(without > 100);
}

TEST_CASE("step graphs: SGD, and the scan on tensor cores" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  Task sgd, tensor_cores;
  sgd.optimizer = OptimizerKind::sgd;
  sgd.microbatches = 2;
  compare_steps(sgd, 4);
  tensor_cores.config = for_tensor_cores();
  tensor_cores.dtype = DType::bf16;
  compare_steps(tensor_cores, 3);
}

TEST_CASE("step graphs: adapters with dropout, which drops other elements in each step" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const DropoutPosition position : {DropoutPosition::pre, DropoutPosition::post}) {
    Task task;
    task.microbatches = 2;
    task.checkpointing = position == DropoutPosition::pre;
    LoraAdapters adapters;
    adapters.dropout = 0.25;
    adapters.dropout_position = position;
    for (const TensorSpec& spec : tensor_specs(task.config)) {
      if (spec.linear) adapters.modules.emplace(spec.id.module(), LoraModule{.rank = 3});
      if (!spec.buffer) task.config.choices.frozen.insert(spec.id);
    }
    task.config.choices.lora = adapters;
    compare_steps(task, 4);
  }
}

TEST_CASE("step graphs: noise on the embeddings, with other numbers and another magnitude in each step" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  Task task;
  task.config = with_mtp(small_config("M*"), 1, false);
  task.config.choices.noise = {5, 3};
  task.microbatches = 2;
  compare_steps(task, 4);
}

TEST_CASE("step graphs: a capacity has graphs of its own, and batches without one run as without graphs" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  Task task;
  task.microbatches = 2;
  const auto tight = [&](int step) {
    const TestBatch batch = random_batch(task.config, {4, 3}, static_cast<std::uint64_t>(step));
    return TokenBatch(batch.ids, batch.labels, batch.sequences);
  };
  const auto small = [&](int step) { return std::vector(2, tight(step).with_capacity(9, 2, 8)); };
  const std::vector<std::vector<TokenBatch>> all{batches_of(task, 0),
                                                 batches_of(task, 1),
                                                 {microbatch(task, 2, 0), tight(2)},
                                                 small(3),
                                                 small(4),
                                                 batches_of(task, 5),
                                                 small(6),
                                                 batches_of(task, 7),
                                                 {microbatch(task, 8, 0)}};
  std::vector<std::int64_t> in_graphs;
  const Course with(task, true, all,
                    [&](int, std::int64_t, std::int64_t count) { in_graphs.push_back(count); });
  check_same(with, Course(task, false, all));
  const std::int64_t update = in_graphs[3];
  CHECK(update > 0);
  CHECK(update < 10);
  CHECK(in_graphs[0] == 0);
  CHECK(in_graphs[1] > 200);
  CHECK(in_graphs[2] == 0);
  CHECK(in_graphs[4] > 200);
  CHECK(in_graphs[5] == in_graphs[1]);
  CHECK(in_graphs[6] == in_graphs[4]);
  CHECK(in_graphs[7] == in_graphs[1]);
  CHECK(in_graphs[8] == update);  // the first microbatch is the last one, too
}

TEST_CASE("step graphs: steps without labels and steps that are skipped" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Task task;
  const auto course = [&](bool graphs) {
    auto t = std::make_unique<Trainer>(task);
    std::optional<StepReplay> replay;
    if (graphs) replay.emplace(t->parallel);
    const Tensor& weight = t->model->parameters().all()[0].value;
    for (int s = 0; s < 6; ++s) {
      std::vector<TokenBatch> batches = batches_of(task, s);
      if (s == 3) {
        batches[0].labels.fill(ignored_label);
        batches[0].label_tokens = 0;
      }
      const Tensor before = weight.clone();
      if (s == 4) weight.fill(std::numeric_limits<double>::infinity());
      const StepResult got = t->step(batches, s, replay ? &*replay : nullptr);
      if (s == 4) weight.copy_from(before);
      CHECK(got.outcome == (s == 3   ? StepOutcome::no_labels
                            : s == 4 ? StepOutcome::non_finite
                                     : StepOutcome::updated));
    }
    return t;
  };
  check_same(*course(true), *course(false));
}

TEST_CASE("step graphs: work that cannot be captured runs as without graphs" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Task task;
  Trainer t(task);
  GraphCache graphs(t.model->parameters(), t.parallel.all());
  const Tensor x = Tensor::zeros({8}, DType::f32, Device::cuda),
               one = Tensor::zeros({8}, DType::f32, Device::cuda);
  one.fill(1);
  std::int64_t ran = 0;
  double last = 0;
  const auto waits = [&] {
    ++ran;
    add_elements(x, x, one);
    const HostWaitName name("count");
    last = x.to_vector()[0];
  };
  for (int i = 0; i < 4; ++i) graphs.run("a count", {}, waits);
  CHECK(ran == 6);  // two of them in a capture
  CHECK(last == 4);
  CHECK(x.to_vector()[0] == 4);
  CHECK(graphs.launches_in_graphs() == 0);
  // Of so many forms, not all get graphs; all run.
  for (int round = 0; round < 3; ++round)
    for (int form = 0; form < 40; ++form)
      graphs.run("a sum", {static_cast<double>(form)}, [&] { add_elements(x, x, one); });
  CHECK(x.to_vector()[0] == 124);
  CHECK(graphs.launches_in_graphs() == 2 * 15);
}

TEST_CASE("step graphs: rotary embeddings that depend on the lengths of sequences run as without graphs" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const RopeType type : {RopeType::llama3, RopeType::dynamic}) {
    ModelConfig config = tiny_llama_config();
    config.attention.rope.type = type;
    config.attention.rope.max_position_embeddings = 8;
    Stack model(config, DType::f32, Device::cuda);
    initialise(model, 1);
    ParallelModel parallel(model);
    StepReplay replay(parallel);
    CHECK(replay.begin_step(true, 1) == (type == RopeType::llama3));
  }
}

TEST_CASE("step graphs: gradients that are there after the work are there after its graph" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Task task;
  Trainer t(task);
  GraphCache graphs(t.model->parameters(), t.parallel.all());
  const Parameter& p = t.model->parameters().all()[0];
  const Tensor one = Tensor::zeros(p.value.shape(), DType::f32, Device::cuda);
  one.fill(1);
  const auto work = [&] {
    const Output to = p.node->into();
    if (to.how == Into::set)
      to.to.copy_from(one);
    else
      add_elements(to.to, to.to, one);
  };
  for (int step = 0; step < 4; ++step) {
    for (int m = 1; m <= 3; ++m) {
      graphs.run("a gradient", {}, work);
      CHECK(p.node->filled());
    }
    CHECK(p.node->grad().to_vector()[0] == 3);
    t.model->parameters().clear_gradients();
  }
}

TEST_CASE("step graphs: the peak of memory is that of steps without graphs" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const bool checkpointing : {false, true}) {
    CAPTURE(checkpointing);
    Task task;
    task.checkpointing = checkpointing;
    task.microbatches = 2;
    const auto peaks = [&](bool graphs) {
      Trainer t(task);
      std::optional<StepReplay> replay;
      if (graphs) replay.emplace(t.parallel);
      std::vector<std::int64_t> all;
      for (int s = 0; s < 5; ++s) {
        const std::vector<TokenBatch> batches = batches_of(task, s);
        allocator(Device::cuda).reset_peak();
        t.step(batches, s, replay ? &*replay : nullptr);
        if (s > 0) all.push_back(allocator(Device::cuda).stats().peak_bytes);
      }
      return all;
    };
    const auto with = peaks(true), without = peaks(false);
    for (std::size_t i = 0; i < with.size(); ++i) {
      CHECK(with[i] <= without[i]);
      CHECK(with[i] > 0.95 * static_cast<double>(without[i]));
    }
  }
}

TEST_CASE("step graphs: a model on another device is refused") {
  Stack model(tiny_config("*"), DType::f32, Device::cpu);
  ParallelModel parallel(model);
  CHECK_THROWS_WITH_AS(StepReplay{parallel}, doctest::Contains("on a CUDA device, got cpu"), Error);
}
