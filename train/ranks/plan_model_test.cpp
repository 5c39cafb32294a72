#include "train/ranks/plan_model.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/hf/families/family.h"
#include "data/hf/hf_config.h"
#include "data/json/test_dir.h"
#include "tests/support/message_of.h"
#include "train/recipe/recipe.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

ModelConfig model_of(const char* model_type, const Json& changes = Json::object()) {
  Json config = {{"model_type", model_type}, {"vocab_size", 23},       {"hidden_size", 16},
                 {"intermediate_size", 12},  {"num_hidden_layers", 2}, {"num_attention_heads", 4},
                 {"num_key_value_heads", 2}, {"head_dim", 4}};
  config.update(changes);
  return parse_hf_config(JsonView(config, "config.json"));
}

/// Layers with attention and MLP, without attention, and without MLP; two widths and two numbers of heads.
ModelConfig decilm(const Json& widths = {1, 1, 40}) {
  const Json absent = {{"no_op", true}};
  return model_of("nemotron-nas",
                  {{"num_hidden_layers", 4},
                   {"block_configs",
                    {{{"attention", {{"n_heads_in_group", 2}}}, {"ffn", {{"ffn_mult", widths[0]}}}},
                     {{"attention", absent}, {"ffn", {{"ffn_mult", widths[1]}}}},
                     {{"attention", {{"n_heads_in_group", 2}}}, {"ffn", absent}},
                     {{"attention", {{"n_heads_in_group", 2}}}, {"ffn", {{"ffn_mult", widths[2]}}}}}}});
}

ModelConfig nemotron_h(const char* blocks = "ME*-") {
  return model_of("nemotron_h", {{"hybrid_override_pattern", blocks},
                                 {"num_hidden_layers", std::string_view(blocks).size()},
                                 {"mamba_num_heads", 4},
                                 {"mamba_head_dim", 4},
                                 {"n_groups", 2},
                                 {"ssm_state_size", 4},
                                 {"n_routed_experts", 4},
                                 {"num_experts_per_tok", 2},
                                 {"moe_intermediate_size", 8},
                                 {"moe_shared_expert_intermediate_size", 8}});
}

/// A recipe with these keys of `distributed`, as an inline section.
DistributedSection section_of(const std::string& keys) {
  return parse_recipe(
             cat("dataset: {_target_: mock}\nmodel: {config: x}\ndistributed: {tp_size: 2", keys, "}\n"),
             "r.yaml", {}, RecipeUse::data)
      .distributed;
}

ParallelPlan plan(const ModelConfig& config, const std::string& keys,
                  TpCrossEntropy loss = TpCrossEntropy::automatic, std::int64_t ranks = 2) {
  ParallelSettings settings;
  settings.tp_cross_entropy = loss;
  const DistributedSection section = section_of(keys);
  return plan_model(section, settings, rank_sizes(section, ranks), config);
}
std::string error_of(const ModelConfig& config, const std::string& keys,
                     TpCrossEntropy loss = TpCrossEntropy::automatic) {
  return message_of([&] { plan(config, keys, loss); });
}

bool same(const TensorCut& a, const TensorCut& b) {
  return a.shard.ranges() == b.shard.ranges() && a.sum == b.sum && a.summed == b.summed &&
         a.counted == b.counted && a.expert == b.expert;
}

/// Every rank holds the same of every tensor, and sums the same gradients, under the family's own plan.
void check_own_plan(const ModelConfig& config, const std::string& tp_plan) {
  for (const char* sequence_parallel : {", sequence_parallel: false", ", sequence_parallel: true"}) {
    CAPTURE(sequence_parallel);
    const auto cuts = [&](const std::string& keys) {
      const ParallelPlan p = plan(config, sequence_parallel + keys);
      return TensorCuts(config, TensorParallelPlan(config, p.sequence_parallel, p.tensor_rules), p.grid);
    };
    const TensorCuts own = cuts(""), given = cuts(", tp_plan: " + tp_plan);
    for (const TensorSpec& spec : tensor_specs(config))
      for (std::int64_t rank = 0; rank < 2; ++rank) {
        CAPTURE(spec.name);
        CHECK(same(given(spec, {.tp = rank}), own(spec, {.tp = rank})));
      }
  }
}

// base_model_tp_plan and _tp_plan of transformers 5.24. Those of Llama, Mistral, Ministral 3 and Qwen 2 are
// the same.
const std::string decoder_plan = R"({"layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise", "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.o_proj": "rowwise", "layers.*.mlp.gate_proj": "colwise",
    "layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise",
    "lm_head": "colwise_gather_output"})";
const std::string qwen3_plan = R"({"layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise", "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.q_norm": "replicated_with_grad_allreduce",
    "layers.*.self_attn.k_norm": "replicated_with_grad_allreduce",
    "layers.*.self_attn.o_proj": "rowwise", "layers.*.mlp.gate_proj": "colwise",
    "layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise",
    "lm_head": "colwise_gather_output"})";
const std::string qwen3_moe_plan = R"({"layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise", "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.q_norm": "replicated_with_grad_allreduce",
    "layers.*.self_attn.k_norm": "replicated_with_grad_allreduce", "layers.*.self_attn.o_proj": "rowwise",
    "layers.*.mlp.experts.gate_up_proj": "packed_colwise", "layers.*.mlp.experts.down_proj": "rowwise",
    "layers.*.mlp.experts": "moe_tp_experts", "layers.*.mlp.gate_proj": "colwise",
    "layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise",
    "lm_head": "colwise_gather_output"})";
const std::string qwen3_moe_expert_plan = R"({"layers.*.mlp.experts.gate_up_proj": "grouped_gemm",
    "layers.*.mlp.experts.down_proj": "grouped_gemm", "layers.*.mlp.experts": "ep_dispatch_experts"})";
const std::string gemma4_plan = R"({"layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise", "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.q_norm": "replicated_with_grad_allreduce",
    "layers.*.self_attn.k_norm": "replicated_with_grad_allreduce", "layers.*.self_attn.o_proj": "rowwise",
    "layers.*.mlp.gate_proj": "colwise", "layers.*.mlp.up_proj": "colwise",
    "layers.*.mlp.down_proj": "rowwise", "layers.*.experts.gate_up_proj": "packed_colwise",
    "layers.*.experts.down_proj": "rowwise", "layers.*.experts": "moe_tp_experts",
    "lm_head": "colwise_gather_output"})";
const std::string gemma4_expert_plan = R"({"layers.*.mlp.gate_proj": "colwise",
    "layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise",
    "layers.*.experts.gate_up_proj": "grouped_gemm", "layers.*.experts.down_proj": "grouped_gemm",
    "layers.*.experts": "ep_dispatch_experts"})";
const std::string phi_plan = R"({"layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise", "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.dense": "rowwise", "layers.*.mlp.fc1": "colwise", "layers.*.mlp.fc2": "rowwise",
    "lm_head": "colwise_gather_output"})";
const std::string falcon_h1_plan =
    R"({"embed_tokens": "embedding_rowwise", "lm_head": "colwise_gather_output"})";
const std::string nemotron_h_plan = R"({"embeddings": "embedding_rowwise",
    "layers.*.mixer.experts.up_proj": "colwise", "layers.*.mixer.experts.down_proj": "rowwise",
    "layers.*.mixer.experts": "moe_tp_experts"})";
const std::string nemotron_h_expert_plan = R"({"layers.*.mixer.experts.up_proj": "grouped_gemm",
    "layers.*.mixer.experts.down_proj": "grouped_gemm",
    "layers.*.mixer.experts": "ep_dispatch_experts"})";
// transformers has no DeciLM. The words are those of AutoModel's plan.
const std::string decilm_plan = R"({"model.embed_tokens": "rowwise_rep",
    "model.layers.*.self_attn.q_proj": "colwise", "model.layers.*.self_attn.k_proj": "colwise",
    "model.layers.*.self_attn.v_proj": "colwise", "model.layers.*.self_attn.o_proj": "rowwise",
    "model.layers.*.mlp.gate_proj": "colwise", "model.layers.*.mlp.up_proj": "colwise",
    "model.layers.*.mlp.down_proj": "rowwise", "lm_head": "colwise_rep"})";
// That of AutoModel, which has W_pack whole on every rank. Here W_pack is cut as well.
const std::string baichuan_plan = R"({"model.layers.*.mlp.gate_proj": "colwise",
    "model.layers.*.mlp.up_proj": "colwise", "model.layers.*.mlp.down_proj": "rowwise"})";

}  // namespace

TEST_CASE("plan of a model: Hugging Face's plan of each family, pasted into a recipe, is the family's own") {
  for (const char* model_type : {"llama", "mistral", "ministral3", "qwen2"}) {
    CAPTURE(model_type);
    check_own_plan(model_of(model_type), decoder_plan);
    check_own_plan(model_of(model_type, {{"tie_word_embeddings", true}}), decoder_plan);
  }
  check_own_plan(model_of("llama", {{"attention_bias", true}, {"mlp_bias", true}}), decoder_plan);
  check_own_plan(model_of("qwen3", {{"attention_bias", true}}), qwen3_plan);
  const ModelConfig qwen3_moe = model_of("qwen3_moe", {{"num_experts", 4},
                                                       {"num_experts_per_tok", 2},
                                                       {"moe_intermediate_size", 8},
                                                       {"mlp_only_layers", {1}}});
  check_own_plan(qwen3_moe, qwen3_moe_plan);
  check_own_plan(qwen3_moe, qwen3_moe_expert_plan);
  CHECK(error_of(qwen3_moe, ", tp_plan: {layers.*.mlp.experts.gate_up_proj: colwise}") ==
        "the tensor-parallel plan says 'colwise' for 'model.layers.0.mlp.experts.gate_up_proj'; want "
        "expert_colwise");
  check_own_plan(model_of("gemma3_text", {{"attention_bias", true}}), qwen3_plan);
  check_own_plan(model_of("gemma4_unified_text", {{"attention_bias", true}, {"global_head_dim", 16}}),
                 qwen3_plan);
  const ModelConfig gemma4 = model_of("gemma4_text", {{"global_head_dim", 16},
                                                      {"hidden_size_per_layer_input", 4},
                                                      {"vocab_size_per_layer_input", 23},
                                                      {"enable_moe_block", true},
                                                      {"num_experts", 4},
                                                      {"top_k_experts", 2},
                                                      {"moe_intermediate_size", 8}});
  check_own_plan(gemma4, gemma4_plan);
  check_own_plan(gemma4, gemma4_expert_plan);
  for (const bool tied : {false, true})
    check_own_plan(model_of("phi", {{"qk_layernorm", true}, {"tie_word_embeddings", tied}}), phi_plan);
  for (const char* positions : {"max_position_embeddings", "model_max_length"})
    check_own_plan(model_of("baichuan", {{positions, 64}, {"z_loss_weight", 0}}), baichuan_plan);
  for (const bool norm : {false, true})
    check_own_plan(
        model_of("falcon_h1", {{"mamba_d_ssm", 8}, {"mamba_n_heads", 4}, {"mamba_rms_norm", norm}}),
        falcon_h1_plan);
  check_own_plan(nemotron_h(), nemotron_h_plan);
  check_own_plan(nemotron_h(), nemotron_h_expert_plan);
  check_own_plan(decilm(), decilm_plan);
  // Of an absent part no pattern wants anything; a pattern without any module is refused.
  CHECK(error_of(nemotron_h("M*-"), ", tp_plan: " + nemotron_h_plan)
            .starts_with("the tensor-parallel plan: 'layers.*.mixer.experts' is 'moe_tp_experts' and matches "
                         "no stack of experts of this model"));
}

TEST_CASE("plan of a model: W_pack is cut as three blocks of rows, each by heads, or is whole") {
  const ModelConfig config = model_of("baichuan", {{"max_position_embeddings", 64}});
  const auto w_pack = [&](const std::string& keys) {
    const ParallelPlan p = plan(config, keys);
    const TensorCuts cuts(config, TensorParallelPlan(config, false, p.tensor_rules), p.grid);
    for (const TensorSpec& spec : tensor_specs(config))
      if (spec.id == mixer_name(0, "qkv_proj.weight")) return cuts(spec, {.tp = 1}).shard.ranges()[0];
    return std::vector<Range>();
  };
  CHECK(w_pack("") == std::vector<Range>{{8, 16}, {24, 32}, {40, 48}});  // rows of rank 1 of two
  CHECK(w_pack(", tp_plan: {layers.*.self_attn.*: replicated}") == std::vector<Range>{{0, 48}});
  CHECK(error_of(config, ", tp_plan: {layers.*.self_attn.W_pack: rowwise}")
            .find("says 'rowwise' for 'model.layers.0.self_attn.W_pack'; want colwise or replicated") !=
        std::string::npos);
}

TEST_CASE("plan of a model: patterns may have the prefix of the body, and of wrappers") {
  for (const char* prefix : {"", "model.", "model.language_model.", "language_model.model."}) {
    CAPTURE(prefix);
    const ParallelPlan p =
        plan(model_of("qwen3"), cat(", tp_plan: {", prefix, "layers.1.self_attn.*: replicated, ", prefix,
                                    "embed_tokens: replicated, ", prefix, "norm: sequence_parallel}"));
    const TensorParallelPlan tensor(model_of("qwen3"), false, p.tensor_rules);
    CHECK(tensor.style(mixer_name(2, "q_proj")) == TensorStyle::replicated);
    CHECK(tensor.style(mixer_name(0, "q_proj")) == TensorStyle::colwise);
    CHECK(tensor.style(embeddings_name()) == TensorStyle::replicated);
  }
  const ParallelPlan p = plan(model_of("llama"), ", tp_plan: {language_model.lm_head: replicate}");
  CHECK(TensorParallelPlan(model_of("llama"), false, p.tensor_rules).style(head_name()) ==
        TensorStyle::replicated);
}

TEST_CASE("plan of a model: each family's plan has a name, which changes nothing") {
  for (const Family* family : families()) {
    CAPTURE(family->model_type);
    CHECK_FALSE(family->tp_plans.empty());
    for (const std::string_view name : family->tp_plans) CHECK(name.ends_with("_tp_plan"));
  }
  const auto rules = [](const ModelConfig& config, const char* name) {
    return plan(config, cat(", tp_plan: ", name)).tensor_rules.size();
  };
  CHECK(rules(model_of("llama"), "llama_tp_plan") == 0);
  CHECK(rules(model_of("llama"), "llama_nemotron_super_tp_plan") == 0);
  CHECK(rules(decilm(), "llama_nemotron_super_tp_plan") == 0);
  CHECK(rules(nemotron_h(), "nemotron_h_tp_plan") == 0);
  CHECK(error_of(model_of("qwen3"), ", tp_plan: llama_nemotron_super_tp_plan") ==
        "distributed.tp_plan: llama_nemotron_super_tp_plan is the plan of another family; want "
        "qwen3_tp_plan, as the model's model_type is qwen3");
}

TEST_CASE("plan of a model: a run says where its tensor-parallel plan comes from, in one line") {
  const auto lines = [](const std::string& keys, const ModelConfig& config = model_of("qwen3")) {
    return tensor_plan_lines(section_of(keys), {}, config);
  };
  const std::string order =
      " (the first that there is: a section, a name or a file in distributed.tp_plan, the family's own)";
  using Lines = std::vector<std::string>;
  CHECK(lines("") == Lines{"tensor-parallel plan: qwen3_tp_plan, the family's own" + order});
  CHECK(lines(", tp_plan: qwen3_tp_plan") == Lines{"tensor-parallel plan: qwen3_tp_plan, by name" + order});
  CHECK(lines(", tp_plan: {lm_head: colwise}") ==
        Lines{"tensor-parallel plan: 1 pattern of distributed.tp_plan, then qwen3_tp_plan" + order});
  const TestDir dir;
  spit(dir / "plan.json", qwen3_plan);
  const std::string file = (dir / "plan.json").string();
  CHECK(lines(", tp_plan: " + file) ==
        Lines{"tensor-parallel plan: 10 patterns of " + file + ", then qwen3_tp_plan" + order});
  const Lines with_notes = lines(", tp_plan: " + nemotron_h_plan, nemotron_h());
  REQUIRE(with_notes.size() == 4);
  CHECK(with_notes[1] ==
        "the tensor-parallel plan: 'moe_tp_experts' for 'layers.*.mixer.experts': "
        "distributed.expert_tp_size and ep_size say over how many ranks experts are cut");
  CHECK(tensor_plan_lines(
            parse_recipe("dataset: {_target_: mock}\nmodel: {config: x}\n", "r.yaml", {}, RecipeUse::data)
                .distributed,
            {}, model_of("qwen3"))
            .empty());
}

TEST_CASE("plan of a model: a whole head and a plan that cuts it are refused together") {
  CHECK(error_of(model_of("llama"), ", tp_plan: {lm_head: colwise}", TpCrossEntropy::off) ==
        "distributed.tp_cross_entropy is off, so each rank has the whole head; distributed.tp_plan says "
        "vocab_parallel for 'lm_head'; want replicated there, or another tp_cross_entropy");
  CHECK(error_of(model_of("llama"), ", tp_plan: {lm_head: replicate}", TpCrossEntropy::off) == "no error");
  CHECK(error_of(model_of("llama"), "", TpCrossEntropy::off) == "no error");
}

TEST_CASE("plan of a model: heads and widths of every layer must divide, and the message names the layer") {
  CHECK(error_of(decilm(), ", tp_plan: llama_nemotron_super_tp_plan") == "no error");
  const auto message = [](const ModelConfig& config, const std::string& keys = "") {
    const DistributedSection section = section_of(keys);
    return message_of([&] {
      DistributedSection wide = section;
      wide.tp_size = 4;
      plan_model(wide, {}, rank_sizes(wide, 4), config);
    });
  };
  ModelConfig heads = decilm();  // blocks: attention, MLP, MLP, attention, attention, MLP
  heads.own_configs[4] = heads.common();
  heads.own_configs[4].attention.num_key_value_heads = 4;
  CHECK(message(heads).find("num_key_value_heads of model.layers.0.self_attn is 2, which puts a head on 2 "
                            "ranks; num_key_value_heads of model.layers.3.self_attn is 4, which puts a head "
                            "on 1 rank") != std::string::npos);
  ModelConfig widths = decilm();
  widths.own_configs[5] = widths.common();
  widths.own_configs[5].mlp.intermediate_size = 258;
  CHECK(
      message(widths).starts_with("distributed.tp_size is 4; intermediate_size of model.layers.3.mlp is "
                                  "258; want a divisor."));
  // A layer that every rank has whole need not divide.
  CHECK(message(widths, ", tp_plan: {model.layers.3.mlp.*: replicated}") == "no error");
}
