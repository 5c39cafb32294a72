#include "train/step/train_step.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "core/cuda/runtime.h"
#include "core/host_wait.h"
#include "model/test_models.h"
#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

TokenBatch token_batch(const TestBatch& b) { return {b.ids, b.labels, b.sequences}; }

// Sequences [first, last) of a batch as one microbatch.
TokenBatch rows(const TestBatch& b, std::int64_t first, std::int64_t last) {
  const std::int64_t begin = b.sequences.begin(first), count = b.sequences.end(last - 1) - begin;
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = first; i < last; ++i) lengths.push_back(b.sequences.length(i));
  return {b.ids.narrow(0, begin, count).clone(), b.labels.narrow(0, begin, count).clone(),
          Sequences::of_lengths(lengths)};
}

struct Trainer {
  explicit Trainer(DType dtype = DType::f64, const OptimizerOptions& options = {},
                   const char* pattern = "ME*-")
      : Trainer(tiny_config(pattern), dtype, options) {}
  explicit Trainer(const ModelSetup& config, DType dtype = DType::f64, const OptimizerOptions& options = {})
      : model(config, dtype, Device::cpu),
        ready((randomise(model, 51), true)),
        optimizer(model.parameters(), options) {}
  std::vector<Tensor> everything() const {
    std::vector<Tensor> all;
    for (const Parameter& p : model.parameters().all()) all.push_back(p.value.clone());
    for (const StateTensor& t : optimizer.state()) all.push_back(t.value.clone());
    return all;
  }
  Stack model;
  bool ready;
  ParallelModel parallel{model};
  Optimizer optimizer;
};

StepOptions step_options() {
  StepOptions o;
  o.lr = 1e-2;
  o.weight_decay = 0.1;
  return o;
}

bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) same = compare_bits(a[i], b[i]).ok;
  return same;
}

bool no_gradients(const Stack& model) {
  for (const Parameter& p : model.parameters().all())
    if (p.node && p.node->filled()) return false;
  return true;
}

}  // namespace

TEST_CASE("train_step: microbatches with unequal label counts give what one batch gives") {
  const TestBatch batch = random_batch(tiny_config(), {9, 2, 11, 5}, 52);
  Trainer whole, split;
  const std::vector<TokenBatch> one{token_batch(batch)};
  const std::vector<TokenBatch> three{rows(batch, 0, 1), rows(batch, 1, 2), rows(batch, 2, 4)};
  for (int step = 0; step < 3; ++step) {
    const StepResult a = train_step(whole.parallel, whole.optimizer, one, step_options());
    const StepResult b = train_step(split.parallel, split.optimizer, three, step_options());
    CHECK(a.outcome == StepOutcome::updated);
    CHECK(a.label_tokens == b.label_tokens);
    CHECK(a.loss == doctest::Approx(b.loss).epsilon(1e-12));
    CHECK(a.grad_norm == doctest::Approx(b.grad_norm).epsilon(1e-11));
  }
  const auto a = whole.everything(), b = split.everything();
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(relative_error(a[i], b[i]) < 1e-9);
  CHECK(whole.optimizer.steps() == 3);
}

TEST_CASE("train_step: loss and norm are those of the mean over labelled tokens") {
  const TestBatch batch = random_batch(tiny_config(), {9, 5}, 53);
  Trainer t;
  std::int64_t labels = 0;
  for (const double label : batch.labels.to_vector()) labels += label >= 0;
  const double sum = loss_and_gradients(t.model, batch);
  double squares = 0;
  for (const Tensor& g : gradients(t.model))
    if (g.defined())
      for (const double x : g.to_vector()) squares += x * x;
  t.model.parameters().clear_gradients();
  const std::vector<TokenBatch> one{token_batch(batch)};
  const Tensor before = Tensor::zeros({2}, DType::f64, Device::cpu);
  CHECK(evaluate_loss(t.parallel, one[0], nullptr, before).labels == labels);
  CHECK(before.to_vector()[0] == doctest::Approx(sum).epsilon(1e-13));
  CHECK(before.to_vector()[1] == 0);
  const StepResult r = train_step(t.parallel, t.optimizer, one, step_options());
  const auto n = static_cast<double>(labels);
  CHECK(r.loss == doctest::Approx(sum / n).epsilon(1e-13));
  CHECK(r.grad_norm == doctest::Approx(std::sqrt(squares) / n).epsilon(1e-12));
  CHECK(r.label_tokens == labels);
  CHECK(no_gradients(t.model));
}

TEST_CASE("train_step: a batch without labels changes nothing") {
  TestBatch batch = random_batch(tiny_config(), {6}, 54);
  for (std::int64_t i = 0; i < 6; ++i) batch.labels.data<std::int64_t>()[i] = -100;
  Trainer t;
  const auto before = t.everything();
  const std::vector<TokenBatch> one{token_batch(batch)};
  StepOptions o = step_options();
  o.expert_bias_rate = 0.1;
  t.model.moe_layers()[0]->router().aux_loss_coef = 0.5;
  const StepResult r = train_step(t.parallel, t.optimizer, one, o);
  CHECK(r.outcome == StepOutcome::no_labels);
  CHECK(r.auxiliary_losses.empty());
  CHECK(r.loss == 0);
  CHECK(r.label_tokens == 0);
  CHECK(same_bits(t.everything(), before));
  CHECK(t.optimizer.steps() == 0);
  CHECK(no_gradients(t.model));
  for (const bool repeated : {false, true}) {
    Trainer ahead(with_mtp(tiny_config("M*E"), 2, repeated));
    const StepResult none = train_step(ahead.parallel, ahead.optimizer, one, o);
    CHECK(none.outcome == StepOutcome::no_labels);
    CHECK(none.mtp_losses == std::vector<double>{0, 0});
  }
}

TEST_CASE("train_step: a microbatch without labels beside one with labels adds nothing") {
  const TestBatch batch = random_batch(tiny_config(), {6}, 55);
  TestBatch silent = random_batch(tiny_config(), {9}, 56);
  for (std::int64_t i = 0; i < 9; ++i) silent.labels.data<std::int64_t>()[i] = -100;
  Trainer a, b;
  const std::vector<TokenBatch> one{token_batch(batch)}, two{token_batch(silent), token_batch(batch)};
  const StepResult x = train_step(a.parallel, a.optimizer, one, step_options());
  const StepResult y = train_step(b.parallel, b.optimizer, two, step_options());
  CHECK(x.loss == y.loss);
  CHECK(x.grad_norm == y.grad_norm);
  CHECK(same_bits(a.everything(), b.everything()));
}

TEST_CASE("train_step: a NaN or infinity anywhere leaves weights, moments and step count alone") {
  const TestBatch batch = random_batch(tiny_config(), {8, 5}, 57);
  const std::vector<TokenBatch> two{rows(batch, 0, 1), rows(batch, 1, 2)};
  for (const double poison :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    for (const char* name : {"backbone.layers.0.mixer.out_proj.weight",
                             "backbone.layers.3.mixer.down_proj.weight", "backbone.norm_f.weight"}) {
      CAPTURE(name);
      CAPTURE(poison);
      Trainer t;
      REQUIRE(train_step(t.parallel, t.optimizer, two, step_options()).outcome == StepOutcome::updated);
      double& element = t.model.parameters().get(name).value.data<double>()[1];
      const double healthy = element;
      element = poison;
      const auto before = t.everything();
      StepOptions o = step_options();
      o.expert_bias_rate = 0.1;
      const StepResult r = train_step(t.parallel, t.optimizer, two, o);
      CHECK(r.outcome == StepOutcome::non_finite);
      CHECK(same_bits(t.everything(), before));
      CHECK(t.optimizer.steps() == 1);
      CHECK(no_gradients(t.model));
      // The skipped step leaves nothing behind: with the healthy value back, the next step is that of a run
      // without the skipped one.
      element = healthy;
      Trainer other;
      (void)train_step(other.parallel, other.optimizer, two, step_options());
      const StepResult next = train_step(t.parallel, t.optimizer, two, step_options());
      const StepResult want = train_step(other.parallel, other.optimizer, two, step_options());
      CHECK(next.loss == want.loss);
      CHECK(same_bits(t.everything(), other.everything()));
    }
}

TEST_CASE("train_step: clipping scales the gradient to the norm that is allowed") {
  const TestBatch batch = random_batch(tiny_config(), {9, 5}, 58);
  const std::vector<TokenBatch> one{token_batch(batch)};
  OptimizerOptions sgd;
  sgd.kind = OptimizerKind::sgd;
  Trainer start(DType::f64, sgd), free(DType::f64, sgd), clipped(DType::f64, sgd), loose(DType::f64, sgd);
  StepOptions o;
  o.lr = 0.1;
  o.max_norm = std::numeric_limits<double>::infinity();
  const StepResult r = train_step(free.parallel, free.optimizer, one, o);
  o.max_norm = r.grad_norm / 4;
  CHECK(train_step(clipped.parallel, clipped.optimizer, one, o).grad_norm == r.grad_norm);
  o.max_norm = r.grad_norm * 1.01;
  (void)train_step(loose.parallel, loose.optimizer, one, o);
  const auto base = start.everything(), a = free.everything(), b = clipped.everything();
  CHECK(same_bits(a, loose.everything()));
  double whole = 0, quarter = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto x = base[i].to_vector(), y = a[i].to_vector(), z = b[i].to_vector();
    for (std::size_t j = 0; j < x.size(); ++j) {
      whole += (y[j] - x[j]) * (y[j] - x[j]);
      quarter += (z[j] - x[j]) * (z[j] - x[j]);
      CHECK(std::abs((z[j] - x[j]) - (y[j] - x[j]) / 4) < 1e-6 * std::abs(y[j] - x[j]) + 1e-14);
    }
  }
  CHECK(std::sqrt(whole) == doctest::Approx(0.1 * r.grad_norm).epsilon(1e-9));
  CHECK(std::sqrt(quarter) == doctest::Approx(0.1 * r.grad_norm / 4).epsilon(1e-5));
}

TEST_CASE(
    "train_step: correction biases move towards idle experts by the rate, counted over all microbatches") {
  const TestBatch batch = random_batch(tiny_config("E"), {9, 5, 4}, 59);
  const std::vector<TokenBatch> two{rows(batch, 0, 2), rows(batch, 2, 3)};
  Trainer t(DType::f32, {}, "E");
  MoeMixer& moe = *t.model.moe_layers().at(0);
  const auto before = moe.correction_bias()->value.to_vector();
  StepOptions o = step_options();
  o.expert_bias_rate = 0.125;
  const StepResult r = train_step(t.parallel, t.optimizer, two, o);
  const auto counts = r.expert_counts.at(0).to_vector(), after = moe.correction_bias()->value.to_vector();
  double total = 0;
  for (const double c : counts) total += c;
  REQUIRE(total == 18 * 2);
  for (std::size_t e = 0; e < 6; ++e) {
    const double want = counts[e] < 6 ? 0.125 : counts[e] > 6 ? -0.125 : 0;
    CHECK(after[e] - before[e] == doctest::Approx(want).epsilon(1e-6));
  }
}

TEST_CASE("train_step: an update that leaves numbers that are not finite names where") {
  const TestBatch batch = random_batch(tiny_config("E"), {9, 5, 4}, 59);
  const std::vector<TokenBatch> one{rows(batch, 0, 3)};
  Trainer healthy(DType::f32, {}, "E"), bias(DType::f32, {}, "E"), weights(DType::f32, {}, "E");
  StepOptions o = step_options();
  CHECK(train_step(healthy.parallel, healthy.optimizer, one, o).not_finite == "");
  o.expert_bias_rate = 1e300;
  CHECK(train_step(bias.parallel, bias.optimizer, one, o).not_finite ==
        "backbone.layers.0.mixer.gate.e_score_correction_bias");
  o.lr = 1e300;
  const StepResult lost = train_step(weights.parallel, weights.optimizer, one, o);
  CHECK(lost.outcome == StepOutcome::updated);
  CHECK(lost.not_finite == "backbone.embeddings.weight");
}

namespace {

// With long chunks: the software GPU spends most of a step in the scans.
ModelConfig config_of_two_steps() {
  ModelConfig config = tiny_config("ME*-");
  config.mamba.chunk_size = 8;
  return config;
}

/// Two steps on a device: losses, norms, counts, weights and the state of the optimizer. `roomy`: batches
/// with a capacity that is larger than they are.
std::vector<Tensor> two_steps(Device device, OptimizerKind kind, DType dtype, bool checkpointing,
                              bool roomy = false) {
  const TestBatch batch = random_batch(config_of_two_steps(), {9, 4, 0, 6}, 63);
  std::vector<TokenBatch> two{rows(batch, 0, 2), rows(batch, 2, 4)};
  if (roomy)
    for (TokenBatch& each : two) each = each.with_capacity(17, 3, 12);
  Stack whole(config_of_two_steps(), dtype, Device::cpu), model(whole.setup(), dtype, device);
  randomise(whole, 64);
  copy_weights(model, whole);
  model.activation_checkpointing = checkpointing;
  for (MoeMixer* moe : model.moe_layers()) {
    moe->router().aux_loss_coef = 0.5;
    moe->router().seq_aux_loss_coef = 0.25;
    moe->router().global_aux_loss_coef = 0.125;
    moe->router().z_loss_coef = 0.5;
  }
  ParallelModel parallel(model);
  Optimizer optimizer(model.parameters(), {.kind = kind, .momentum = kind == OptimizerKind::sgd ? 0.9 : 0});
  StepOptions options = step_options();
  options.expert_bias_rate = 0.01;
  std::vector<Tensor> all;
  for (int step = 0; step < 2; ++step) {
    reset_host_waits();
    const StepResult r = train_step(parallel, optimizer, two, options);
    const std::map<std::string, std::int64_t> one{{"step result", 1}}, none;
    CHECK(host_waits() == (device.is_host() ? none : one));
    CHECK(r.outcome == StepOutcome::updated);
    all.push_back(Tensor::from<double>({r.loss, r.grad_norm}, {2}));
    for (const auto& [name, loss] : r.auxiliary_losses)
      all.push_back(Tensor::scalar(loss, DType::f64, Device::cpu));
    for (const Tensor& counts : r.expert_counts) all.push_back(counts);
  }
  for (const Parameter& p : model.parameters().all()) all.push_back(p.value.to(Device::cpu));
  for (const StateTensor& t : optimizer.state()) all.push_back(t.value.to(Device::cpu));
  return all;
}

/// Every two of the three choices meet in all four ways.
template <class Test>
void for_step_kinds(Test&& test) {
  for (const auto& [kind, dtype, checkpointing] : {std::tuple{OptimizerKind::adamw, DType::f32, false},
                                                   {OptimizerKind::adamw, DType::bf16, true},
                                                   {OptimizerKind::sgd, DType::f32, true},
                                                   {OptimizerKind::sgd, DType::bf16, false}}) {
    CAPTURE(kind);
    CAPTURE(dtype);
    CAPTURE(checkpointing);
    test(kind, dtype, checkpointing);
  }
}

}  // namespace

TEST_CASE(
    "train_step: whole steps on Device::guard have the bits of the CPU, and the host waits once for each") {
  for_step_kinds([](OptimizerKind kind, DType dtype, bool checkpointing) {
    CHECK(same_bits(two_steps(Device::guard, kind, dtype, checkpointing),
                    two_steps(Device::cpu, kind, dtype, checkpointing)));
  });
}

TEST_CASE("train_step: whole steps on cuda are close to those of the CPU, and the host waits once for each" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for_step_kinds([](OptimizerKind kind, DType dtype, bool checkpointing) {
    const auto got = two_steps(Device::cuda, kind, dtype, checkpointing),
               want = two_steps(Device::cpu, kind, dtype, checkpointing);
    REQUIRE(got.size() == want.size());
    // Tens of roundings lie between the ids and a gradient; AdamW's first steps divide gradients by their
    // size.
    const double most = dtype == DType::f32 ? 200 * 0x1p-24 : 40 * 0x1p-9;
    for (std::size_t i = 0; i < got.size(); ++i) {
      CAPTURE(i);
      CHECK(relative_error(got[i], want[i]) <= most);
    }
  });
}

TEST_CASE("train_step: spare rows and room for sequences and labels change nothing but roundings" *
          doctest::test_suite("cuda")) {
  for_step_kinds([](OptimizerKind kind, DType dtype, bool checkpointing) {
    const auto on_cpu = two_steps(Device::cpu, kind, dtype, checkpointing, true);
    CHECK(same_bits(two_steps(Device::guard, kind, dtype, checkpointing, true), on_cpu));
    for (const Device device : {Device::cpu, Device::cuda}) {
      if (device.is_cuda() && !has_cuda()) continue;
      CAPTURE(device);
      const auto want = two_steps(device, kind, dtype, checkpointing);
      const auto got = device.is_cuda() ? two_steps(device, kind, dtype, checkpointing, true) : on_cpu;
      REQUIRE(got.size() == want.size());
      const double most = dtype == DType::f32 ? 200 * 0x1p-24 : 40 * 0x1p-9;
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(i);
        CHECK(relative_error(got[i], want[i]) <= most);
      }
    }
  });
}

namespace {

/// Launches of a step of `microbatches` equal microbatches.
std::int64_t launches_of(const std::string& pattern, std::int64_t microbatches) {
  ModelConfig config = tiny_config(pattern.c_str());
  config.mamba.num_heads = 2;  // the scan on tensor cores
  config.mamba.head_dim = 64;
  config.mamba.n_groups = 1;
  config.mamba.ssm_state_size = 128;
  Stack model(config, DType::bf16, Device::cuda);
  initialise(model, 1);
  ParallelModel parallel(model);
  Optimizer optimizer(model.parameters(), {});
  const TestBatch batch = random_batch(config, {9, 4}, 63);
  const std::vector<TokenBatch> batches(static_cast<std::size_t>(microbatches), token_batch(batch));
  const std::int64_t before = cuda::launches();
  CHECK(train_step(parallel, optimizer, batches, step_options()).outcome == StepOutcome::updated);
  return cuda::launches() - before;
}

}  // namespace

TEST_CASE("train_step: a block's launches on cuda, forward and backward, are as few as it needs" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  // The second of two blocks, in the second of two microbatches: all that comes once in a step or a
  // microbatch cancels.
  const auto launches_of_block = [](const std::string& block) {
    return (launches_of(block + block, 2) - launches_of(block + block, 1)) -
           (launches_of(block, 2) - launches_of(block, 1));
  };
  // One of them computes the norm again.
  CHECK(launches_of_block("M") <= 20);
  // Two of them because the router's weight is f32: its terms of bf16, and the sum of the products with them.
  // Of more than 32,768 choices one more counts them.
  CHECK(launches_of_block("E") <= 35);
  CHECK(launches_of_block("*") <= 22);
  CHECK(launches_of_block("-") <= 12);
}

TEST_CASE("train_step: batches of one capacity need the same memory, to the byte" *
          doctest::test_suite("cuda")) {
  for (const Device device :
       {Device::guard, Device::cuda}) {  // on the CPU kernels have scratch memory of their own
    if (device.is_cuda() && !has_cuda()) continue;
    CAPTURE(device);
    Stack model(tiny_config("ME*-"), DType::f32, device);
    initialise(model, 65);
    for (MoeMixer* moe : model.moe_layers()) moe->router().seq_aux_loss_coef = 0.25;
    ParallelModel parallel(model);
    Optimizer optimizer(model.parameters(), {});
    const auto peak = [&](const std::vector<std::int64_t>& lengths, std::uint64_t seed) {
      const TestBatch batch = random_batch(tiny_config("ME*-"), lengths, seed);
      const std::vector<TokenBatch> one{token_batch(batch).with_capacity(20, 4, 16)};
      allocator(device).reset_peak();
      train_step(parallel, optimizer, one, step_options());
      return allocator(device).stats().peak_bytes;
    };
    peak({20}, 1);  // makes the optimizer's tensors
    const std::int64_t want = peak({20}, 2);
    CHECK(peak({3, 0, 1, 5}, 3) == want);
    CHECK(peak({1, 17}, 4) == want);
  }
}

TEST_CASE("train_step: auxiliary losses weigh the same for any number of equal microbatches") {
  const TestBatch batch = random_batch(tiny_config("E"), {8}, 60);
  Trainer a(DType::f64, {}, "E"), b(DType::f64, {}, "E");
  for (Trainer* t : {&a, &b}) t->model.moe_layers()[0]->router().aux_loss_coef = 0.5;
  const std::vector<TokenBatch> one{token_batch(batch)}, twice{token_batch(batch), token_batch(batch)};
  const StepResult x = train_step(a.parallel, a.optimizer, one, step_options());
  const StepResult y = train_step(b.parallel, b.optimizer, twice, step_options());
  CHECK(x.loss == doctest::Approx(y.loss).epsilon(1e-13));
  CHECK(x.grad_norm == doctest::Approx(y.grad_norm).epsilon(1e-12));
}

TEST_CASE("train_step: auxiliary losses that are on, summed over layers and averaged over microbatches") {
  const TestBatch batch = random_batch(tiny_config("EME"), {9, 4}, 62);
  const std::vector<TokenBatch> two{rows(batch, 0, 1), rows(batch, 1, 2)};
  Trainer t(DType::f64, {}, "EME"), silent(DType::f64, {}, "EME"), by_hand(DType::f64, {}, "EME");
  const double loss = train_step(silent.parallel, silent.optimizer, two, step_options()).loss;
  CHECK(train_step(silent.parallel, silent.optimizer, two, step_options()).auxiliary_losses.empty());
  for (Trainer* each : {&t, &by_hand})
    for (MoeMixer* moe : each->model.moe_layers()) {
      moe->router().aux_loss_coef = 0.5;
      moe->router().global_aux_loss_coef = 0.25;
      moe->router().z_loss_coef = 0.125;
    }
  double aux = 0, global = 0, z = 0;
  for (std::int64_t i = 0; i < 2; ++i) {
    BlockRecords records;
    loss_and_gradients(by_hand.model, part(batch, i), 1, nullptr, &records);
    for (const MoeRecord* moe : moe_records(records)) {
      const auto losses = moe->sums.losses.to_vector();
      aux += losses[0] / 2;
      global += losses[2] / 2;
      z += losses[3] / 2;
    }
  }
  const StepResult r = train_step(t.parallel, t.optimizer, two, step_options());
  CHECK(r.loss == loss);
  REQUIRE(r.auxiliary_losses.size() == 3);
  const std::vector<std::pair<std::string, double>> want{
      {"aux_loss", aux}, {"global_aux_loss", global}, {"z_loss", z}};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(r.auxiliary_losses[i].first == want[i].first);
    CHECK(r.auxiliary_losses[i].second == doctest::Approx(want[i].second).epsilon(1e-13));
    CHECK(r.auxiliary_losses[i].second > 0);
  }
  CHECK(aux != doctest::Approx(2 * global).epsilon(1e-6));
  // The next step counts the tokens of the experts from zero again.
  const StepResult next = train_step(t.parallel, t.optimizer, two, step_options());
  CHECK(next.auxiliary_losses[1].second == doctest::Approx(global).epsilon(0.2));
}

TEST_CASE("train_step: routers of layers with different numbers of experts count and move their own") {
  Trainer t(tiny_pruned_config());
  const TestBatch batch = random_batch(t.model.config(), {9, 4}, 64);
  std::vector<std::vector<double>> before;
  for (const MoeMixer* moe : t.model.moe_layers())
    before.push_back(moe->correction_bias()->value.to_vector());
  StepOptions options = step_options();
  options.expert_bias_rate = 0.01;
  const std::vector<TokenBatch> one{token_batch(batch)};
  const StepResult r = train_step(t.parallel, t.optimizer, one, options);
  REQUIRE(r.expert_counts.size() == 2);
  const std::array<std::int64_t, 2> experts{6, 8}, choices{2, 3};
  for (std::size_t layer = 0; layer < 2; ++layer) {
    CAPTURE(layer);
    const std::vector<double> counts = r.expert_counts[layer].to_vector(),
                              bias = t.model.moe_layers()[layer]->correction_bias()->value.to_vector();
    REQUIRE(std::ssize(counts) == experts[layer]);
    const auto sum = static_cast<double>(13 * choices[layer]);
    CHECK(std::accumulate(counts.begin(), counts.end(), 0.0) == sum);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const double above = counts[i] * static_cast<double>(counts.size()) - sum;
      CHECK(bias[i] - before[layer][i] == doctest::Approx(above > 0 ? -0.01 : above < 0 ? 0.01 : 0));
    }
  }
}

// Both depths have the same weights, of one layer or of two.
TEST_CASE("train_step: a repeated layer of multi-token prediction adds up what its depths count and lose") {
  for (const char* pattern : {"ME", "M*"})  // with and without a router before the depths
    for (const char* mtp : {"*E", "E-E"}) {
      CAPTURE(std::string(pattern));
      CAPTURE(std::string(mtp));
      ModelConfig config = tiny_config(pattern);
      config.mtp_blocks = parse_pattern(mtp).blocks;
      Trainer one(with_mtp(config, 3, true)), several(with_mtp(config, 3, false));
      const std::string layers = "mtp.layers.";
      const std::size_t blocks = config.mtp_blocks.size();
      for (Parameter& p : several.model.parameters().all()) {
        std::string name = p.name;
        if (name.starts_with(layers)) {
          std::size_t digits = 0;
          const std::size_t block = std::stoul(name.substr(layers.size()), &digits);
          name = cat(layers, block % blocks, name.substr(layers.size() + digits));
        }
        p.value.copy_from(one.model.parameters().get(name).value);
      }
      for (Trainer* t : {&one, &several})
        for (MoeMixer* moe : t->model.moe_layers()) {
          moe->router().aux_loss_coef = 0.5;
          moe->router().seq_aux_loss_coef = 0.25;
          moe->router().z_loss_coef = 0.125;
        }
      const TestBatch batch = random_batch(config, {9, 5}, 63);
      const std::vector<TokenBatch> two{rows(batch, 0, 1), rows(batch, 1, 2)};
      const StepResult got = train_step(one.parallel, one.optimizer, two, step_options()),
                       want = train_step(several.parallel, several.optimizer, two, step_options());
      REQUIRE(got.auxiliary_losses.size() == 3);
      for (std::size_t i = 0; i < 3; ++i) {
        CHECK(got.auxiliary_losses[i].first == want.auxiliary_losses[i].first);
        CHECK(got.auxiliary_losses[i].second ==
              doctest::Approx(want.auxiliary_losses[i].second).epsilon(1e-13));
      }
      const std::size_t of_depth = moe_records(one.model.make_mtp_records()).size() / 3,
                        before = got.expert_counts.size() - of_depth;
      REQUIRE(want.expert_counts.size() == before + 3 * of_depth);
      for (std::size_t i = 0; i < got.expert_counts.size(); ++i) {
        std::vector<double> sum = want.expert_counts[i].to_vector();
        for (std::size_t k = 1; i >= before && k < 3; ++k) {
          const std::vector<double> more = want.expert_counts[i + k * of_depth].to_vector();
          for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += more[e];
        }
        CHECK(got.expert_counts[i].to_vector() == sum);
      }
    }
}

TEST_CASE("train_step: a few steps on one batch learn it") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const TestBatch batch = random_batch(tiny_config(), {12, 9}, 61);
    Trainer t(dtype);
    const std::vector<TokenBatch> one{token_batch(batch)};
    const double first = train_step(t.parallel, t.optimizer, one, step_options()).loss;
    double last = first;
    for (int i = 0; i < 60; ++i) last = train_step(t.parallel, t.optimizer, one, step_options()).loss;
    CHECK(last < first / 4);
  }
}
