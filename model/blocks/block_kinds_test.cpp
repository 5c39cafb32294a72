#include "model/blocks/block_kinds.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <sstream>

#include "model/blocks/attention/attention_block.h"
#include "model/blocks/block_type.h"
#include "model/blocks/linear_layer/linear_block.h"
#include "model/blocks/mamba/mamba_block.h"
#include "model/blocks/mixer.h"
#include "model/blocks/mlp/mlp_block.h"
#include "model/test_models.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("block kinds: found by letter, name and alias, and by nothing else") {
  std::set<std::string> names;
  for (const BlockKind kind : block_kinds()) {
    CHECK(find_block_kind(kind->letter) == kind);
    CHECK(find_block_kind(name_of(kind)) == kind);
    if (kind->alias) CHECK(find_block_kind(std::string_view(kind->alias)) == kind);
    std::ostringstream text;
    text << kind;
    CHECK(names.insert(text.str()).second);
  }
  CHECK(names == std::set<std::string>{"attention", "gated_delta_net", "linear", "mamba", "mlp", "moe",
                                       "per_layer_input"});
  CHECK_FALSE(find_block_kind('X'));
  CHECK_FALSE(find_block_kind(std::string_view("conv")));
  CHECK_FALSE(find_block_kind(std::string_view("")));
}

TEST_CASE("block kinds: each tensor of a model has a row, and each row is in some model") {
  std::set<std::string_view> rows;
  const ModelConfig config = tiny_config_with_all_tensors();
  for (const ModelConfig& of :
       {config, tiny_llama_config(), tiny_windowed_config(NormKind::layernorm), tiny_config("L"),
        tiny_baichuan_config(), tiny_gated_experts_config(), tiny_delta_net_config(), tiny_gemma4_config()})
    for (const TensorSpec& spec : tensor_specs(of)) {
      REQUIRE(spec.cut);
      CHECK(spec.id.whole() == spec.module.whole());
      const std::optional<BlockKind> kind = of.kind_of(spec.id);
      CHECK(kind.has_value() == spec.id.block_of_model().has_value());
      if (!spec.id.in_mixer()) continue;
      const BlockConfig& sizes = of.of_tensor(spec.id);
      const auto row = std::ranges::find_if((*kind)->tensors(), [&](const BlockTensor& t) {
        return t.name == spec.id.member && t.shape(sizes).has_value();
      });
      REQUIRE(row != (*kind)->tensors().end());
      CHECK(find_block_tensor(*kind, spec.id.member) != nullptr);
      rows.insert(row->name);
      CHECK(row->law == spec.law);
      CHECK(&row->cut == spec.cut);
      CHECK(keeps_f32(*row, of.of_tensor(spec.id)) == spec.keep_f32);
      CHECK(keeps_f32(of, spec.id) == spec.keep_f32);
    }
  for (const BlockKind kind : block_kinds())
    for (const BlockTensor& row : kind->tensors()) CHECK(rows.contains(row.name));
  CHECK(find_block_tensor(mamba_block, "norm.weight") != nullptr);
  for (const char* other : {"norm", "A", "q_proj.weight"})
    CHECK(find_block_tensor(mamba_block, other) == nullptr);
  CHECK_FALSE(keeps_f32(config, block_name(0, "norm.weight")));
  CHECK_FALSE(keeps_f32(config, head_name() / "weight"));
}

TEST_CASE("block kinds: entries and divisions name modules that the kind has") {
  ModelConfig config = tiny_config_with_all_tensors();
  config.per_layer_input.size = 5;
  for (const BlockKind kind : block_kinds()) {
    const auto has = [&](std::string_view module) {
      return std::ranges::any_of(kind->tensors(),
                                 [&](const BlockTensor& t) { return module_of(t) == module; });
    };
    // A block of per-layer inputs works on the rows of the residual stream that a rank has.
    CHECK(has(kind->entry(config)) == (kind != per_layer_input_block));
    for (const Division& d : kind->divisions(config)) {
      CHECK(has(d.module));
      CHECK(d.value > 0);
    }
    // A linear layer keeps its input alone, which is the norm's result.
    if (kind != linear_block)
      CHECK(kind->memory(config, {.tokens = 8, .all = 8, .routed = 8, .stream = 8}, {4, 4}, {}).kept > 0);
    CHECK(kind->pipeline_weight > 0);
  }
}

TEST_CASE("block kinds: rows that are cut on their own are all the rows of the tensor") {
  const ModelConfig config = tiny_config_with_all_tensors();
  int segmented = 0;
  for (const TensorSpec& spec : tensor_specs(config)) {
    if (!spec.cut->segments) continue;
    ++segmented;
    std::int64_t rows = 0;
    for (const RowSegment& segment : spec.cut->segments(config)) rows += segment.rows;
    CHECK(rows == spec.shape[0]);
  }
  CHECK(segmented == 6);  // weight and bias of in_proj and of the convolution; keys and values
}

namespace {

/// Numbers that kernels beside products read and write, forward and backward.
struct Numbers final : BlockWork {
  double forward = 0, backward = 0;
  void product(Part, double, double, double, double) override {}
  void operations(Part, double, double) override {}
  void numbers(double f, double b) override { forward += f, backward += b; }
};

struct Cost {
  double forward, backward;
  std::int64_t kept;
};
/// Of ten rows, with numbers of four bytes.
Cost cost_of(BlockKind kind, const BlockConfig& config) {
  const BlockRows rows{.tokens = 10, .all = 10, .routed = 10, .length = 10};
  Numbers numbers;
  kind->add_work(numbers, config, rows, {});
  return {numbers.forward, numbers.backward, kind->memory(config, rows, {4, 4}, {}).kept};
}

}  // namespace

TEST_CASE("block kinds: what multipliers and Mamba's norm cost") {
  ModelConfig plain = tiny_config("M*-");
  plain.hidden_size = 1024;
  plain.mlp.gate = GateActivation::silu, plain.mlp.intermediate_size = 512;
  plain.mamba.num_heads = 64, plain.mamba.head_dim = 16;
  const double width = static_cast<double>(plain.mamba.in_proj_width());
  // Each factor that is not 1 reads and writes what it scales, forward and backward.
  const auto more = [&](BlockKind kind, auto&& change, double numbers, std::int64_t kept) {
    BlockConfig changed = plain.common();
    change(changed);
    const Cost before = cost_of(kind, plain.common()), after = cost_of(kind, changed);
    CHECK(after.forward - before.forward == doctest::Approx(10 * numbers));
    CHECK(after.backward - before.backward == doctest::Approx(10 * numbers));
    CHECK(after.kept - before.kept == kept);
  };
  const std::int64_t input = 10 * 1024 * 4;  // a multiple of the allocator's blocks
  more(
      mamba_block, [](BlockConfig& c) { c.mamba.multipliers.output = 2; }, 2 * 1024, 0);
  more(
      mamba_block, [](BlockConfig& c) { c.mamba.multipliers.dt = 2; }, 2 * width, 0);
  more(
      mamba_block, [](BlockConfig& c) { c.mamba.multipliers.input = 2; }, 2 * width, 0);
  more(
      mamba_block, [](BlockConfig& c) { c.mamba.multipliers.input = 2, c.mamba.in_proj_bias = true; },
      2 * 1024, input);
  more(
      attention_block, [](BlockConfig& c) { c.attention.input_multiplier = 2; }, 2 * 1024, input);
  more(
      attention_block, [](BlockConfig& c) { c.attention.output_multiplier = 2; }, 2 * 1024, 0);
  more(
      attention_block, [](BlockConfig& c) { c.attention.key_multiplier = 2; }, 0, 0);
  more(
      mlp_block, [](BlockConfig& c) { c.mlp.gate_multiplier = 2; }, 2 * 512, 0);
  more(
      mlp_block, [](BlockConfig& c) { c.mlp.output_multiplier = 2; }, 2 * 1024, 0);
  // A gate alone keeps neither its result nor a scale of each group.
  const TensorBytes bytes{4, 4};
  more(
      mamba_block, [](BlockConfig& c) { c.mamba.norm = MambaNorm::before_gate; }, 0, 0);
  more(
      mamba_block, [](BlockConfig& c) { c.mamba.norm = MambaNorm::none; }, 0,
      -bytes.stored(10 * 1024) - bytes.wide(10 * 2));
}

TEST_CASE("block kinds: multipliers that cannot be are refused") {
  const auto fault = [](auto&& change) {
    ModelConfig config = tiny_config("M*-");
    change(config);
    return message_of([&] { config.validate(); });
  };
  CHECK(fault([](ModelConfig& c) {
          c.mamba.multipliers.b = HUGE_VAL;
        }).starts_with("a multiplier of a Mamba mixer: want a number in"));
  CHECK(fault([](ModelConfig& c) {
          c.attention.output_multiplier = std::nan("");
        }).starts_with("a multiplier of attention: want a number in"));
  CHECK(fault([](ModelConfig& c) { c.attention.key_multiplier = 0; }).starts_with("key_multiplier: want"));
  CHECK(fault([](ModelConfig& c) {
          c.mlp.output_multiplier = HUGE_VAL;
        }).starts_with("a multiplier of an MLP"));
  CHECK(fault([](ModelConfig& c) { c.logit_scale = HUGE_VAL; }).starts_with("scale of the logits: want"));
  CHECK(fault([](ModelConfig& c) { c.mlp.gate_multiplier = 2; }) ==
        "multiplier of the gate of an MLP without a gate: want 1, got 2");
  CHECK(fault([](ModelConfig&) {}) == "no error");
}
