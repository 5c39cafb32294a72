#include "model/blocks/block_kinds.h"

#include <doctest/doctest.h>

#include <set>
#include <sstream>

#include "model/blocks/linear_layer/linear_block.h"
#include "model/blocks/mixer.h"
#include "model/test_models.h"

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
  CHECK(names == std::set<std::string>{"attention", "linear", "mamba", "mlp", "moe"});
  CHECK_FALSE(find_block_kind('X'));
  CHECK_FALSE(find_block_kind(std::string_view("conv")));
  CHECK_FALSE(find_block_kind(std::string_view("")));
}

TEST_CASE("block kinds: each tensor of a model has a row, and each row is in some model") {
  std::set<std::string_view> rows;
  const ModelConfig config = tiny_config_with_all_tensors();
  for (const ModelConfig& of : {config, tiny_llama_config(), tiny_windowed_config(NormKind::layernorm),
                                tiny_config("L"), tiny_baichuan_config(), tiny_gated_experts_config()})
    for (const TensorSpec& spec : tensor_specs(of)) {
      REQUIRE(spec.cut);
      CHECK(spec.id.whole() == spec.module.whole());
      const std::optional<BlockKind> kind = of.kind_of(spec.id);
      CHECK(kind.has_value() == spec.id.block_of_model().has_value());
      if (!spec.id.in_mixer()) continue;
      const BlockTensor* row = find_block_tensor(*kind, spec.id.member);
      REQUIRE(row);
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
  const ModelConfig config = tiny_config_with_all_tensors();
  for (const BlockKind kind : block_kinds()) {
    const auto has = [&](std::string_view module) {
      return std::ranges::any_of(kind->tensors(),
                                 [&](const BlockTensor& t) { return module_of(t) == module; });
    };
    CHECK(has(kind->entry(config)));
    for (const Division& d : kind->divisions(config)) {
      CHECK(has(d.module));
      CHECK(d.value > 0);
    }
    // A linear layer keeps its input alone, which is the norm's result.
    if (kind != linear_block)
      CHECK(kind->memory(config, {.tokens = 8, .all = 8, .routed = 8}, {4, 4}, {}).kept > 0);
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
