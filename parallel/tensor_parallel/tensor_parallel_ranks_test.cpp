#include <doctest/doctest.h>

#include <map>
#include <set>

#include "model/test_models.h"
#include "parallel/tensor_parallel/cuts.h"
#include "parallel/tensor_parallel/install.h"
#include "tests/support/ranks.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// Every kind of block, every bias and norms of heads, in sizes that `tp` ranks divide.
ModelConfig config_for(std::int64_t tp, std::int64_t kv_heads) {
  ModelConfig c = with_experts({"ME*-", 12, 2 * tp, kv_heads, 3 * tp, 2 * tp, 3, 5, 4}, {6, 2, 7, 5 * tp, 6});
  c.vocab_size = 23;
  c.attention.head_dim = 4;
  c.mamba.n_groups = tp;
  c.mamba.in_proj_bias = c.mamba.out_proj_bias = c.mlp.bias = c.moe.bias = true;
  c.attention.qkv_bias = c.attention.output_bias = true;
  c.attention.head_norm = NormKind::rmsnorm;
  return c;
}

/// The local part of a global tensor.
Tensor local_part(const Tensor& global, const Shard& shard) {
  const auto values = global.to_vector();
  std::vector<double> own(static_cast<std::size_t>(shard.numel()));
  shard.for_each_run([&](std::int64_t local, std::int64_t from, std::int64_t count) {
    std::copy_n(values.begin() + from, count, own.begin() + local);
  });
  return Tensor::from(own, shard.shape());
}

const Parameter& same_of(const Stack& whole, const Parameter& p) {
  return *std::ranges::find(whole.parameters().all(), p.name, &Parameter::name);
}

/// One rank's part of a model: the weights of `whole`, cut and connected over the ranks of a grid.
struct CutModel {
  CutModel(const Stack& whole, std::int64_t tp, bool sequence_parallel,
           const std::vector<TensorParallelRule>& rules = {}, RowCut group_rows = {})
      : plan(whole.setup(), sequence_parallel, rules),
        sizes(sizes_of(whole.setup(), plan, tp)),
        place(place_of(sizes, test_world().rank())),
        cuts(whole.setup(), plan, sizes),
        groups(test_world(), make_grid(sizes)),
        model(whole.setup(), DType::f64, Device::cpu,
              {whole.part().chunks, [this](const TensorSpec& spec) { return cuts(spec, place).shard; }}),
        parallel(model, plan, groups, std::move(group_rows)) {
    for (Parameter& p : model.parameters().all())
      p.value.copy_from(local_part(same_of(whole, p).value, p.shard));
  }
  static GridSizes sizes_of(const ModelSetup& config, const TensorParallelPlan& plan, std::int64_t tp) {
    const HeadReplicas replicas = head_replicas(config, plan, tp);
    return {.tp = tp,
            .dp_shard = test_world().size() / tp,
            .kv_replicas = replicas.kv,
            .state_replicas = replicas.state};
  }
  TensorCut cut(const Parameter& p) const {
    const auto specs = tensor_specs(model.setup());
    return cuts(*std::ranges::find(specs, p.name, &TensorSpec::name), place);
  }
  /// This rank's rows of those that its tp group has.
  Tensor own_rows(const Tensor& rows) const {
    if (!plan.sequence_parallel()) return rows;
    const Range own = even_part({0, rows.rows()}, sizes.tp, place.tp);
    return rows.narrow(0, own.begin, own.size());
  }

  TensorParallelPlan plan;
  GridSizes sizes;
  GridPlace place;
  TensorCuts cuts;
  ProcessGroups groups;
  Stack model;
  TensorParallel parallel;
};

struct Pass {
  double loss = 0;
  Tensor hidden, residual_gradient;
  std::vector<MoeRecord> moe;
};

/// Forward and backward of a model that begins with a residual sum.
Pass run(Stack& model, const Tensor& residual, const TestBatch& batch, bool deferred = false) {
  Tape tape;
  if (deferred) tape.defer_weight_work();
  Context ctx{.tape = &tape};
  const Var in = make_result(residual, true);
  BlockRecords records = model.make_records();
  model.parameters().clear_gradients();
  const Var hidden =
      model.forward(ctx, {.ids = {}, .residual = in, .sequences = batch.sequences, .records = &records});
  Pass pass;
  pass.hidden = hidden.value().clone();
  const Var loss = model.loss(ctx, hidden, batch.labels, batch.sequences, 0.5);
  tape.backward(loss, Tensor::scalar(1, DType::f64, Device::cpu));
  tape.run_weight_work();
  pass.loss = loss.value().to_vector()[0];
  pass.residual_gradient =
      in.node()->filled() ? in.node()->take() : Tensor::zeros(residual.shape(), DType::f64, Device::cpu);
  for (const MoeRecord* record : moe_records(records)) pass.moe.push_back(*record);
  return pass;
}

constexpr double tolerance = 1e-12;

/// The gradients of the ranks, completed as the cuts say, are the parts of the gradients of the whole model.
void check_gradients(CutModel& part, const Stack& whole) {
  double squares = 0, want_squares = 0;
  for (const Parameter& p : part.model.parameters().all()) {
    if (!p.node) continue;
    CAPTURE(p.name);
    const TensorCut cut = part.cut(p);
    const Tensor want = same_of(whole, p).gradient();
    const Tensor got = p.gradient().reshape({p.value.numel()});
    if (cut.sum)
      for (const Range& r : cut.summed) part.groups[*cut.sum].all_reduce(got.narrow(0, r.begin, r.size()));
    // Data parallelism would do this. The replicas of dp have the same rows here, those of tp have others.
    if (cut.expert) part.groups[Group::tp].all_reduce(got);
    CHECK(relative_error(got.reshape(p.value.shape()), local_part(want, cut.shard)) < tolerance);
    const auto add_squares = [](double& sum, const Tensor& values) {
      for (const double v : values.to_vector()) sum += v * v;
    };
    if (!cut.expert || part.place.tp == 0)
      for (const Range& r : cut.counted) add_squares(squares, got.narrow(0, r.begin, r.size()));
    add_squares(want_squares, want);
  }
  const Tensor sum = Tensor::from<double>({squares}, {1});
  part.groups[Group::tp].all_reduce(sum);
  CHECK(sum.item<double>() == doctest::Approx(want_squares).epsilon(tolerance));
}

void check_pass(CutModel& part, const Pass& got, Stack& whole, const Pass& want) {
  CHECK(got.loss == doctest::Approx(want.loss).epsilon(tolerance));
  CHECK(relative_error(got.hidden, part.own_rows(want.hidden)) < tolerance);
  CHECK(relative_error(got.residual_gradient, part.own_rows(want.residual_gradient)) < tolerance);
  REQUIRE(got.moe.size() == want.moe.size());
  for (std::size_t i = 0; i < want.moe.size(); ++i) {
    const Tensor counts = got.moe[i].sums.counts.clone();
    part.groups[Group::tp].all_reduce(counts);
    CHECK_BITS(counts, want.moe[i].sums.counts);
  }
  check_gradients(part, whole);
}

ModelPart without_embeddings(const ModelConfig& config) {
  return {{{0, config.num_layers(), false, true}}, {}};
}

/// Both ways of a pass on batches of several lengths: more rows than ranks, fewer, none.
void check_on_batches(Stack& whole, CutModel& part) {
  for (const std::vector<std::int64_t>& lengths :
       std::vector<std::vector<std::int64_t>>{{9, 0, 5}, {1}, {0}}) {
    CAPTURE(lengths.size());
    const TestBatch batch = random_batch(whole.config(), lengths, 62);
    const Tensor rows = random_tensor({batch.sequences.tokens(), whole.config().hidden_size}, DType::f64, 63);
    check_pass(part, run(part.model, part.own_rows(rows), batch), whole, run(whole, rows, batch));
  }
}

}  // namespace

TEST_CASE("tensor parallel: loss and gradients are those of one device") {
  const std::int64_t size = test_world().size();
  // On 4 ranks two groups of 2 as well.
  for (const std::int64_t tp : std::set<std::int64_t>{size, size == 4 ? 2 : size}) {
    // As many key-value heads as ranks, and one that all ranks share.
    for (const std::int64_t kv_heads : {tp, std::int64_t{1}}) {
      const ModelConfig config = config_for(tp, kv_heads);
      Stack whole(config, DType::f64, Device::cpu, without_embeddings(config));
      randomise(whole, 61);
      for (const bool sequence_parallel : {false, true}) {
        CAPTURE(tp);
        CAPTURE(kv_heads);
        CAPTURE(sequence_parallel);
        CutModel part(whole, tp, sequence_parallel);
        check_on_batches(whole, part);
      }
    }
  }
}

TEST_CASE("tensor parallel: activation checkpointing and deferred weight work") {
  const std::int64_t tp = test_world().size();
  const ModelConfig config = config_for(tp, tp);
  Stack whole(config, DType::f64, Device::cpu, without_embeddings(config));
  randomise(whole, 64);
  const TestBatch batch = random_batch(config, {7, 4}, 65);
  const Tensor rows = random_tensor({11, config.hidden_size}, DType::f64, 66);
  const Pass want = run(whole, rows, batch);
  for (const bool sequence_parallel : {false, true}) {
    CAPTURE(sequence_parallel);
    CutModel part(whole, tp, sequence_parallel);
    for (const bool checkpointing : {false, true}) {
      CAPTURE(checkpointing);
      part.model.activation_checkpointing = checkpointing;
      check_pass(part, run(part.model, part.own_rows(rows), batch, true), whole, want);
    }
  }
}

TEST_CASE("tensor parallel: mixers, embeddings and lm_head that the plan leaves whole") {
  const std::int64_t tp = test_world().size();
  const ModelConfig config = config_for(tp, tp);
  Stack whole(config, DType::f64, Device::cpu);
  randomise(whole, 67);
  const TestBatch batch = random_batch(config, {6, 7}, 68);
  const double loss = loss_and_gradients(whole, batch);
  std::vector<TensorParallelRule> rules{{"backbone.layers.1.mixer.shared_experts.*", "replicated"},
                                        {"backbone.embeddings", "replicated"}};
  for (const char* block : {"0", "2", "3"})
    rules.push_back({cat("backbone.layers.", block, ".mixer.*"), "replicated"});
  for (const bool sequence_parallel : {false, true})
    for (const bool head : {false, true}) {
      CAPTURE(sequence_parallel);
      CAPTURE(head);
      auto all = rules;
      if (head) all.push_back({"lm_head", "replicated"});
      CutModel part(whole, tp, sequence_parallel, all);
      CHECK(loss_and_gradients(part.model, batch) == doctest::Approx(loss).epsilon(tolerance));
      check_gradients(part, whole);
    }
}

namespace {

/// "ME*-", all mixers but the first `alone` on the norm of the block before.
ModelConfig on_one_norm(std::int64_t tp, std::int64_t alone) {
  ModelConfig config = config_for(tp, tp);
  for (std::int64_t block = alone; block < config.num_layers(); ++block)
    own_config(config, block).residual = Residual::shared_norm;
  return config;
}

/// Calls of the group tp in one pass of a model, forward and backward.
std::map<Operation, std::int64_t> calls_of_pass(const ModelConfig& config, std::int64_t tp,
                                                bool sequence_parallel, bool checkpointing) {
  Stack whole(config, DType::f64, Device::cpu, without_embeddings(config));
  randomise(whole, 80);
  const TestBatch batch = random_batch(config, {7, 4}, 81);
  CutModel part(whole, tp, sequence_parallel);
  part.model.activation_checkpointing = checkpointing;
  std::map<Operation, std::int64_t> calls;
  const auto add = [&](std::int64_t sign) {
    for (const Operation o : {Operation::all_reduce, Operation::all_gather, Operation::reduce_scatter})
      calls[o] += sign * part.groups[Group::tp].stats(o).calls;
  };
  add(-1);
  run(part.model, part.own_rows(random_tensor({11, config.hidden_size}, DType::f64, 82)), batch);
  add(1);
  return calls;
}

}  // namespace

TEST_CASE("tensor parallel: mixers on one norm, whose parts are added before they are sent") {
  const std::int64_t tp = test_world().size();
  // All four kinds on one norm, two pairs, and three behind a block whose mixer has a norm behind it.
  std::vector<ModelConfig> configs{on_one_norm(tp, 1), on_one_norm(tp, 3), on_one_norm(tp, 1)};
  own_config(configs[1], 1).residual = Residual::shared_norm;
  own_config(configs[2], 0).residual = Residual::norm_before_and_after;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    CAPTURE(i);
    const ModelConfig& config = configs[i];
    Stack whole(config, DType::f64, Device::cpu, without_embeddings(config));
    randomise(whole, 77);
    const TestBatch batch = random_batch(config, {7, 4}, 78);
    const Tensor rows = random_tensor({11, config.hidden_size}, DType::f64, 79);
    const std::vector<TensorParallelRule> all_replicated{
        {"backbone.layers.1.mixer.shared_experts.*", "replicated"},
        {"backbone.layers.0.mixer.*", "replicated"},
        {"backbone.layers.2.mixer.*", "replicated"},
        {"backbone.layers.3.mixer.*", "replicated"}};
    for (const bool sequence_parallel : {false, true})
      for (const bool replicated : {false, true}) {
        CAPTURE(sequence_parallel);
        CAPTURE(replicated);
        CutModel part(whole, tp, sequence_parallel,
                      replicated ? all_replicated : std::vector<TensorParallelRule>{});
        check_on_batches(whole, part);
        const Pass want = run(whole, rows, batch);
        for (const bool checkpointing : {false, true}) {
          CAPTURE(checkpointing);
          part.model.activation_checkpointing = checkpointing;
          check_pass(part, run(part.model, part.own_rows(rows), batch, true), whole, want);
        }
      }
  }
}

TEST_CASE("tensor parallel: mixers on one norm send what enters and leaves them once") {
  const std::int64_t tp = test_world().size();
  if (tp == 1) return;
  for (const bool sequence_parallel : {false, true})
    for (const bool checkpointing : {false, true}) {
      CAPTURE(sequence_parallel);
      CAPTURE(checkpointing);
      auto saved = calls_of_pass(config_for(tp, tp), tp, sequence_parallel, checkpointing);
      for (const auto& [operation, calls] :
           calls_of_pass(on_one_norm(tp, 1), tp, sequence_parallel, checkpointing))
        saved[operation] -= calls;
      // Each of four mixers alone: into it, out of it, both again in a replay. Together: once, and no replay.
      const std::int64_t of_ways = checkpointing ? 4 * 3 - 2 : 4 * 2 - 2, of_routed = checkpointing ? 3 : 2;
      CHECK(saved[Operation::all_reduce] == (sequence_parallel ? 0 : of_ways));
      CHECK(saved[Operation::all_gather] == (sequence_parallel ? of_ways : of_routed));
      CHECK(saved[Operation::reduce_scatter] == (sequence_parallel ? of_ways : 0));
    }
}

TEST_CASE("tensor parallel: vocabularies smaller than the number of ranks") {
  const std::int64_t tp = test_world().size();
  ModelConfig config = config_for(tp, tp);
  config.blocks = parse_pattern("-").blocks;
  for (const std::int64_t vocabulary : {3, 5}) {
    config.vocab_size = vocabulary;
    Stack whole(config, DType::f64, Device::cpu, without_embeddings(config));
    randomise(whole, 69);
    for (const bool sequence_parallel : {false, true}) {
      CutModel part(whole, tp, sequence_parallel);
      check_on_batches(whole, part);
    }
  }
}

TEST_CASE("tensor parallel: a group that has some rows of each sequence") {
  const std::int64_t tp = test_world().size();
  if (tp == 1) {
    MESSAGE("skipped: one rank installs nothing");
    return;
  }
  ModelConfig config = config_for(tp, tp);
  config.blocks = parse_pattern("E-").blocks;  // whose rows do not need each other
  Stack whole(config, DType::f64, Device::cpu, without_embeddings(config));
  randomise(whole, 70);
  const RowCut half = [](const Sequences& all) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = 0; i < all.count(); ++i) lengths.push_back((all.length(i) + 1) / 2);
    return Sequences::of_lengths(lengths);
  };
  TestBatch batch = random_batch(config, {5, 4}, 71);
  const Tensor rows = random_tensor({5, config.hidden_size}, DType::f64, 72);
  for (const bool sequence_parallel : {false, true}) {
    CAPTURE(sequence_parallel);
    CutModel part(whole, tp, sequence_parallel, {}, half);
    const Sequences all = batch.sequences;
    TestBatch own = batch;
    own.labels = batch.labels.narrow(0, 0, 5).clone();
    const Pass got = run(part.model, part.own_rows(rows), own);
    own.sequences = half(all);
    check_pass(part, got, whole, run(whole, rows, own));
  }
}

TEST_CASE("tensor parallel: decoding with state") {
  const std::int64_t tp = test_world().size();
  ModelConfig config = config_for(tp, 1);
  own_config(config, 2).residual = Residual::shared_norm;
  Stack whole(config, DType::f64, Device::cpu, without_embeddings(config));
  randomise(whole, 73);
  for (const bool sequence_parallel : {false, true}) {
    CAPTURE(sequence_parallel);
    CutModel part(whole, tp, sequence_parallel);
    DecodeState state = part.model.make_state(2), whole_state = whole.make_state(2);
    std::uint64_t seed = 74;
    for (const std::vector<std::int64_t>& lengths :
         std::vector<std::vector<std::int64_t>>{{4, 2}, {1, 1}, {0, 1}}) {
      const Sequences step = Sequences::of_lengths(lengths);
      const Tensor rows = random_tensor({step.tokens(), config.hidden_size}, DType::f64, seed++);
      const auto forward = [&](Stack& model, const Tensor& residual, DecodeState& memory) {
        Context ctx;
        return model.forward(ctx, {.ids = {}, .residual = residual, .sequences = step, .state = &memory})
            .value();
      };
      CHECK(relative_error(forward(part.model, part.own_rows(rows), state),
                           part.own_rows(forward(whole, rows, whole_state))) < tolerance);
    }
  }
}

TEST_CASE("tensor parallel: every rank draws its part of the same fresh model") {
  const std::int64_t tp = test_world().size();
  ModelConfig config = config_for(tp, 1);
  config.mamba.n_groups = 1;
  Stack whole(config, DType::f64, Device::cpu);
  initialise(whole, 75);
  CutModel part(whole, tp, true);
  for (Parameter& p : part.model.parameters().all()) p.value.zero();
  initialise(part.model, 75);
  for (const Parameter& p : part.model.parameters().all()) {
    CAPTURE(p.name);
    CHECK_BITS(p.value, local_part(same_of(whole, p).value, p.shard));
  }
}

TEST_CASE("tensor parallel: one rank installs nothing") {
  const ModelConfig config = config_for(1, 1);
  Stack whole(config, DType::f64, Device::cpu);
  randomise(whole, 76);
  CutModel part(whole, 1, true);
  for (const auto& [name, point] : part.model.transform_points()) CHECK_FALSE(*point.transform);
  CHECK(part.model.tail()->part.reduction == nullptr);
  for (const Parameter& p : part.model.parameters().all()) {
    CHECK(p.shard.whole());
    CHECK(part.cut(p).sum == std::nullopt);
    CHECK(part.cut(p).counted == std::vector<Range>{{0, p.value.numel()}});
  }
}
