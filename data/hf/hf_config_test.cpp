#include "data/hf/hf_config.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "core/rng.h"
#include "data/hf/families/family.h"
#include "data/json/test_dir.h"
#include "model/test_configs.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
ModelConfig parse(const std::string& text) {
  const Json document = parse_json(text, "config.json");
  return parse_hf_config(JsonView(document, "config.json"));
}

/// A small valid config; `more` is appended, so it must not repeat keys.
std::string config(const std::string& more,
                   const std::string& layers = R"("hybrid_override_pattern": "ME*-")") {
  return R"({"model_type": "nemotron_h", "hidden_size": 32, "vocab_size": 96, )" + layers +
         (more.empty() ? "" : ", " + more) + "}";
}

void check_refused(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CHECK_THROWS_WITH_AS(parse(text), doctest::Contains(part.c_str()), Error);
}
}  // namespace

TEST_CASE("hf config: absent keys have the defaults") {
  const ModelConfig c = parse(config(""));
  CHECK(to_pattern(c.blocks) == "ME*-");
  CHECK(c.hidden_size == 32);
  CHECK(c.mamba.n_groups == 8);
  CHECK(c.mamba.ssm_state_size == 128);
  CHECK(c.mamba.chunk_size == 128);
  CHECK(c.layer_norm_epsilon == 1e-5);
  CHECK(c.mamba.time_step_limit_low == 0);
  CHECK(std::isinf(c.mamba.time_step_limit_high));
  CHECK(c.moe.latent_size == 0);
  CHECK(c.pad_token_id == 0);
  CHECK(c.eos_token_id == std::vector<std::int64_t>{2});
  CHECK_FALSE(c.dtype.has_value());
}

TEST_CASE("hf config: every alias") {
  const ModelConfig c = parse(config(R"("mamba_n_groups": 4, "mamba_state_dim": 16, "mamba_d_conv": 3,
      "mamba_chunk_size": 64, "attention_head_dim": 24, "norm_eps": 0.5, "num_query_groups": 2,
      "mamba_conv_bias": false, "mamba_dt_min": 0.01, "mamba_dt_max": 0.2, "mamba_dt_init_floor": 0.001,
      "mamba_dt_limit": [0.5, 2], "num_local_experts": 16, "torch_dtype": "bfloat16")"));
  CHECK(c.mamba.n_groups == 4);
  CHECK(c.mamba.ssm_state_size == 16);
  CHECK(c.mamba.conv_kernel == 3);
  CHECK(c.mamba.chunk_size == 64);
  CHECK(c.attention.head_dim == 24);
  CHECK(c.layer_norm_epsilon == 0.5);
  CHECK(c.attention.num_key_value_heads == 2);
  CHECK_FALSE(c.mamba.use_conv_bias);
  CHECK(c.mamba.time_step_min == 0.01);
  CHECK(c.mamba.time_step_max == 0.2);
  CHECK(c.mamba.time_step_floor == 0.001);
  CHECK(c.mamba.time_step_limit_low == 0.5);
  CHECK(c.mamba.time_step_limit_high == 2);
  CHECK(c.moe.n_routed_experts == 16);
  CHECK(c.dtype == DType::bf16);
  CHECK(parse(config(R"("mamba_num_groups": 4, "kv_channels": 8, "rms_norm_eps": 0.25)")).mamba.n_groups ==
        4);
  CHECK(parse(config(R"("kv_channels": 8)")).attention.head_dim == 8);
  CHECK(parse(config(R"("rms_norm_eps": 0.25)")).layer_norm_epsilon == 0.25);
  CHECK(parse(config(R"("n_groups": 4, "mamba_n_groups": 4)")).mamba.n_groups == 4);
  check_refused(config(R"("n_groups": 4, "mamba_n_groups": 8)"),
                "config.json: 'n_groups' and 'mamba_n_groups' mean the same and differ: 4 and 8");
}

TEST_CASE("hf config: spellings of the layers") {
  const auto layers = [](const std::string& spelled) {
    return to_pattern(parse(config("", spelled)).blocks);
  };
  CHECK(layers(R"("hybrid_override_pattern": "M|E*|-")") == "ME*-");
  CHECK(layers(R"("layers_block_type": ["mamba", "moe", "attention", "mlp"])") == "ME*-");
  CHECK(layers(R"("layer_types": ["linear_attention", "moe", "full_attention", "mlp"])") == "ME*-");
  CHECK(layers(R"("layers_block_type": ["linear_attention", "moe"], "layer_types": ["mamba", "moe"])") ==
        "ME");
  CHECK(layers(R"("layer_types": ["mamba", "full_attention"])") == "M*");
  CHECK(layers(R"("layers_block_type": ["mlp"], "hybrid_override_pattern": "M*")") == "-");
  CHECK(layers(R"("layers_block_type": ["M", "E", "*", "-", "mamba"])") == "ME*-M");
  CHECK(layers(R"("hybrid_override_pattern": ["M", "moe", "|", "*", "full_attention", "-"])") == "ME**-");
  CHECK(parse(config(R"("mtp_hybrid_override_pattern": ["*", "-"])")).mtp_blocks ==
        parse_pattern("*-").blocks);
  CHECK(layers(R"("layers_block_type": null, "hybrid_override_pattern": "M*")") == "M*");
  set_log_level(LogLevel::error);
  CHECK(layers(R"("hybrid_override_pattern": "M*", "num_hidden_layers": 3)") == "M*");
  set_log_level(LogLevel::info);
  check_refused(config("", R"("layers_block_type": ["mlp"], "layer_types": ["moe"])"),
                "differ: \"-\" and \"E\"");
  check_refused(config("", R"("hybrid_override_pattern": "ME+M")"),
                "config.json: unknown letter '+' at position 3");
  check_refused(config("", R"("hybrid_override_pattern": 4)"),
                "'hybrid_override_pattern': want a string, got 4");
  check_refused(config("", R"("layers_block_type": ["mamba", "rnn"])"), "'layers_block_type[1]': want mamba");
  check_refused(config("", R"("layers_block_type": ["mamba", "/"])"), "'layers_block_type[1]': want mamba");
  check_refused(config("", R"("hybrid_override_pattern": ["M", "ME"])"),
                "'hybrid_override_pattern[1]': want mamba (linear_attention, M)");
  check_refused(config("", R"("hybrid_override_pattern": ["M", 3])"),
                "'hybrid_override_pattern[1]': want a string");
  check_refused(config("", R"("layers_block_type": "M")"), "'layers_block_type': want a list, got \"M\"");
  check_refused(config("", R"("num_hidden_layers": 4)"),
                "the layers are not given; want hybrid_override_pattern");
  check_refused(config("", R"("layer_types": [])"), "want at least one block");
}

TEST_CASE("hf config: spellings of multi-token prediction") {
  const auto mtp = [](const std::string& more, const std::string& pattern = "ME*-") {
    const ModelConfig c = parse(config(more, "\"hybrid_override_pattern\": \"" + pattern + "\""));
    return cat(c.num_nextn_predict_layers, " ", to_pattern(c.mtp_blocks));
  };
  CHECK(mtp("") == "0 *E");
  CHECK(mtp(R"("num_nextn_predict_layers": 1)") == "1 *E");
  CHECK(mtp(R"("num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*-")") == "1 *-");
  CHECK(mtp(R"("num_nextn_predict_layers": 2, "mtp_layers_block_type": ["mlp"])") == "2 -");
  CHECK(mtp(R"("mtp_layers_block_type": ["mlp"], "mtp_hybrid_override_pattern": "M")") == "0 -");
  CHECK(mtp(R"("mtp_layers_block_type": ["full_attention", "moe"], "mtp_hybrid_override_pattern": "M")") ==
        "0 M");
  CHECK(mtp("", "ME*-/*-/*-") == "2 *-");
  CHECK(mtp(R"("num_nextn_predict_layers": 1)", "ME*-/*-/*-") == "1 *-");
  CHECK(mtp(R"("mtp_hybrid_override_pattern": "M")", "ME*-/*-") == "1 M");
  check_refused(config("", R"("hybrid_override_pattern": "M/E/*")"),
                "the same blocks behind each '/', got \"E\" and \"*\"");
  check_refused(config(R"("mtp_hybrid_override_pattern": "M/E")"), "the blocks of one depth");
  check_refused(config(R"("num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "")"),
                "at least one block");
}

TEST_CASE("hf config: infinity in all its spellings") {
  const auto high = [](const std::string& limit) {
    return parse(config("\"time_step_limit\": " + limit)).mamba.time_step_limit_high;
  };
  CHECK(high("[0.0, Infinity]") == INFINITY);
  CHECK(high(R"([0.0, {"__float__": "Infinity"}])") == INFINITY);
  CHECK(high("[0.0, 1e30]") == INFINITY);
  CHECK(high("null") == INFINITY);
  CHECK(high("[0, 0.5]") == 0.5);
  check_refused(config(R"("time_step_limit": [0.0, "inf"])"),
                "'time_step_limit[1]': want a number, got \"inf\"");
  check_refused(config(R"("time_step_limit": [0.0])"), "'time_step_limit': want a list of two numbers");
  check_refused(config(R"("time_step_limit": [0.0, NaN])"), "time_step_limit[1]");
  check_refused(config(R"("layer_norm_epsilon": Infinity)"), "layer_norm_epsilon");
}

TEST_CASE("hf config: null, ids and dtypes") {
  CHECK(parse(config(R"("num_attention_heads": 6, "num_key_value_heads": null)"))
            .attention.num_key_value_heads == 6);
  CHECK(parse(config(R"("moe_latent_size": null)")).moe.latent_size == 0);
  CHECK(parse(config(R"("moe_latent_size": 16)")).moe.latent_size == 16);
  const ModelConfig none =
      parse(config(R"("pad_token_id": null, "bos_token_id": null, "eos_token_id": null)"));
  CHECK_FALSE(none.pad_token_id.has_value());
  CHECK_FALSE(none.bos_token_id.has_value());
  CHECK(none.eos_token_id.empty());
  CHECK(parse(config(R"("pad_token_id": -1, "bos_token_id": -1, "eos_token_id": -1)")) == none);
  CHECK(parse(config(R"("eos_token_id": [-1, 2])")).eos_token_id == std::vector<std::int64_t>{2});
  CHECK(parse(config(R"("eos_token_id": [2, 11])")).eos_token_id == std::vector<std::int64_t>{2, 11});
  CHECK(parse(config(R"("dtype": "float16")")).dtype == DType::f32);
  CHECK(parse(config(R"("dtype": "torch.bfloat16", "torch_dtype": null)")).dtype == DType::bf16);
  CHECK_FALSE(parse(config(R"("dtype": "auto")")).dtype.has_value());
  CHECK(parse(config(R"("dtype": "float32", "torch_dtype": "torch.float32")")).dtype == DType::f32);
  CHECK(parse(config(R"("dtype": "torch.bfloat16", "torch_dtype": "bfloat16")")).dtype == DType::bf16);
  check_refused(config(R"("dtype": "bfloat16", "torch_dtype": "torch.float32")"),
                "'dtype' and 'torch_dtype' mean the same and differ: \"bfloat16\" and \"torch.float32\"");
  check_refused(config(R"("dtype": "int8")"),
                "'dtype': want bfloat16, float16, float32 or float64, got \"int8\"");
  check_refused(config(R"("hidden_act": 3, "use_bias": "no")"), "'use_bias': want true or false, got \"no\"");
  check_refused(config(R"("num_experts_per_tok": 2.0)"), "'num_experts_per_tok': want an integer, got 2.0");
  check_refused(config(R"("routed_scaling_factor": true)"),
                "'routed_scaling_factor': want a number, got true");
  check_refused(config(R"("eos_token_id": [2, "x"])"), "'eos_token_id[1]': want an integer");
  check_refused(config(R"("n_group": 3)"), "config.json: n_routed_experts: want a multiple of n_group (3)");
  check_refused(config(R"("tie_word_embeddings": true)"), "config.json: tie_word_embeddings: want false");
}

TEST_CASE("hf config: other models are refused by name") {
  const std::string rest = R"("hybrid_override_pattern": "M", "vocab_size": 96})";
  CHECK_NOTHROW(parse(R"({"architectures": ["NemotronHForCausalLM"], )" + rest));
  check_refused("{" + rest, cat("'model_type': want ", model_types(), ", got none"));
  const std::string other = "; models of other architectures are not supported";
  check_refused(R"({"model_type": "gpt2", )" + rest,
                cat("config.json: 'model_type': want ", model_types(), ", got \"gpt2\"", other));
  check_refused(R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], )" + rest,
                "got \"gpt2\" (architectures: GPT2LMHeadModel)" + other);
  check_refused(R"({"model_type": "nemotron_h", "architectures": ["NemotronHPuzzleForCausalLM"], )" + rest,
                "NemotronHPuzzle models");
  check_refused(R"({"model_type": "nemotron_h", "block_configs": [{"a": 1}], )" + rest,
                "NemotronHPuzzle models");
  check_refused(R"({"model_type": "nemotron_h_puzzle", )" + rest, "NemotronHPuzzle models");
  check_refused(config(R"("mlp_hidden_act": "silu")"), "'mlp_hidden_act': want \"relu2\", got \"silu\"");
  check_refused(config(R"("mamba_hidden_act": "gelu")"), "'mamba_hidden_act': want \"silu\", got \"gelu\"");
  check_refused("[]", "config.json: want an object, got a list of 0");
}

TEST_CASE("hf config: what would be read as another model is refused by name") {
  const auto refused = [](const std::string& more, const char* part) { check_refused(config(more), part); };
  refused(R"("quantization_config": {"quant_method": "modelopt", "quant_algo": "INT4_AWQ"})",
          "'quantization_config' (quant_method \"modelopt\", quant_algo \"INT4_AWQ\"): the weights are "
          "quantized");
  refused(R"("compression_config": {"bits": 4})", "'compression_config': the weights are quantized");
  refused(R"("quantization_config": "fp8")", "'quantization_config': the weights are quantized");
  refused(R"("llm_config": {"model_type": "nemotron_h", "hidden_size": 64})",
          "'llm_config': this is a model of several parts (model_type \"nemotron_h\")");
  refused(R"("text_config": {"n_groups": 4})", "'text_config': this is a model of several parts");
  refused(R"("vision_config": {"depth": 2})", "'vision_config': this is a model of several parts");
  refused(R"("text_config": 3)", "'text_config': want an object, got 3");
  // A wrapper is recognised even when it names a type and an architecture of its own.
  check_refused(
      R"({"model_type": "NemotronH_Nano_Omni_Reasoning_V3", "architectures": ["NemotronH_Nano_VL_V2"],
                    "llm_config": {"hybrid_override_pattern": "M"}})",
      "(model_type \"NemotronH_Nano_Omni_Reasoning_V3\"), which is not supported; want a language model");
  check_refused(
      R"({"architectures": ["NemotronH_Nano_VL_V2"], "hybrid_override_pattern": "M", "vocab_size": 96})",
      cat("'model_type': want ", model_types(), ", got none"));

  const ModelConfig plain = parse(config(""));
  for (const std::string same :
       {R"("per_layer_config": null)", R"("per_layer_config": [])", R"("per_layer_config": {})",
        R"("per_layer_config": [{}, null, {"hidden_size": 32}, {"moe_latent_size": null}])",
        R"("per_layer_config": {"0": {"vocab_size": 96}})", R"("quantization_config": null)",
        R"("quantization_config": {})",
        R"("quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"})",
        R"("llm_config": null)", R"("text_config": {})",
        R"("text_config": {"hidden_size": 32, "model_type": "nemotron_h"})", R"("block_configs": [])"}) {
    CAPTURE(same);
    CHECK(parse(config(same)) == plain);
  }
}

TEST_CASE("hf config: per_layer_config gives blocks sizes of their own") {
  const std::string layers = R"("hybrid_override_pattern": "MEM*-E")";
  const std::string common = R"("n_routed_experts": 8, "num_experts_per_tok": 2, "moe_latent_size": 16, )";
  const ModelConfig c = parse(config(common + R"("per_layer_config": {
      "01": {"num_experts_per_tok": 1, "n_routed_experts": 4, "moe_latent_size": null, "hidden_size": 32},
      "2": {"mamba_n_groups": 4, "mamba_d_conv": 2, "time_step_limit": [0.5, {"__float__": "Infinity"}]},
      "03": {"num_query_groups": 4, "skip": []}, "4": {"intermediate_size": 12, "mlp_bias": true},
      "5": {"n_routed_experts": 8}})",
                                     layers));
  REQUIRE(c.own_configs.size() == 4);  // block 5 repeats the common sizes
  ModelConfig want = parse(config(common + R"("pad_token_id": 0)", layers));
  own_config(want, 1).moe.num_experts_per_tok = 1, own_config(want, 1).moe.n_routed_experts = 4,
                   own_config(want, 1).moe.latent_size = 0;
  own_config(want, 2).mamba.n_groups = 4, own_config(want, 2).mamba.conv_kernel = 2,
                   own_config(want, 2).mamba.time_step_limit_low = 0.5;
  own_config(want, 3).attention.num_key_value_heads = 4;
  own_config(want, 4).mlp.intermediate_size = 12,
                   own_config(want, 4).mlp.bias = own_config(want, 4).moe.bias = true;
  CHECK(c == want);
  // As a list, and written in the form that transformers reads.
  CHECK(parse(config(common + R"("per_layer_config": [null,
      {"num_experts_per_tok": 1, "num_local_experts": 4, "moe_latent_size": null},
      {"n_groups": 4, "conv_kernel": 2, "time_step_limit": [0.5, Infinity]},
      {"num_key_value_heads": 4}, {"intermediate_size": 12, "mlp_bias": true}, {}])",
                     layers)) == c);
  const HfConfigFile made = make_hf_config(c);
  CHECK(parse(made.text) == c);
  CHECK(parse_json(made.text, "x")["per_layer_config"] == parse_json(R"({
      "1": {"n_routed_experts": 4, "num_experts_per_tok": 1, "moe_latent_size": null},
      "2": {"n_groups": 4, "conv_kernel": 2, "time_step_limit": [0.5, 1e30]},
      "3": {"num_key_value_heads": 4}, "4": {"intermediate_size": 12, "mlp_bias": true}})",
                                                                     "y"));
  // As many digits for each block as the last one has.
  ModelConfig many = parse(config("", R"("hybrid_override_pattern": "-----------")"));
  for (const std::int64_t block : {2, 10})
    own_config(many, block).mlp.bias = own_config(many, block).moe.bias = true;
  const Json text = parse_json(make_hf_config(many).text, "x");
  CHECK(text["per_layer_config"] ==
        parse_json(R"({"02": {"mlp_bias": true}, "10": {"mlp_bias": true}})", "y"));
  CHECK(parse(text.dump()) == many);
}

TEST_CASE("hf config: a per_layer_config that no model can have is refused by name") {
  const auto refused = [](const std::string& layers, const char* part) {
    check_refused(config(R"("num_experts_per_tok": 2, "per_layer_config": )" + layers), part);
  };
  refused(R"([null, {"num_experts_per_tok": 9}])",
          "config.json: block 1: num_experts_per_tok: want at most 8 (topk_group 1 x 8 experts in a group), "
          "got 9");
  refused(R"({"1": {"moe_shared_expert_intermediate_size": 0}})",
          "config.json: block 1: moe_shared_expert_intermediate_size: want at least 1, got 0");
  refused(R"({"0": {"mamba_num_heads": 7}})",
          "block 0: mamba_num_heads: want a multiple of n_groups (8), got 7");
  refused(R"({"1": {"num_experts_per_tok": "2"}})",
          "'per_layer_config.1.num_experts_per_tok': want an integer, got \"2\"");
  refused(R"({"3": {"hidden_size": 8}})",
          "'per_layer_config.3.hidden_size': want 32 as for the whole model, since blocks that differ in "
          "this key are "
          "not supported, got 8");
  refused(R"({"3": {"skip": ["mlp"]}})", "'per_layer_config.3.skip': want none as for the whole model");
  refused(R"({"3": {"intermediat_size": 8}})",
          "'per_layer_config.3.intermediat_size': want none as for the whole");
  refused(R"([{"hidden_size": null}])", "'per_layer_config[0].hidden_size': want 32");
  refused(R"([{"num_experts_per_tok": null}])",
          "'per_layer_config[0].num_experts_per_tok': want a value, got null");
  refused(R"([{"n_groups": 4, "mamba_n_groups": 2}])",
          "'n_groups' and 'mamba_n_groups' mean the same and differ");
  refused(R"("all")", "'per_layer_config': want a list, got \"all\"");
  refused(R"([7])", "'per_layer_config[0]': want an object, got 7");
  refused(R"({"mlp": {"intermediate_size": 8}})",
          "'per_layer_config': want the number of a block as key, got \"mlp\"");
  refused(R"({"-1": {}})", "want the number of a block as key, got \"-1\"");
  refused(R"({"4": {"intermediate_size": 8}})", "'per_layer_config.4': want keys of blocks 0 to 3 only");
  refused(R"({"3": {"intermediate_size": 8}, "03": {"intermediate_size": 8}})",
          "'per_layer_config.03': want the keys of a block in one place");
  check_refused(
      config(R"("num_nextn_predict_layers": 1, "num_experts_per_tok": 2,
                          "mtp_per_layer_config": {"1": {"num_experts_per_tok": 1}})"),
      "'mtp_per_layer_config.1.num_experts_per_tok': want 2 as for the whole model, since blocks of "
      "multi-token prediction with other sizes are not supported, got 1");
}

TEST_CASE("hf config: a list of equal numbers is that number") {
  CHECK(parse(config(R"("intermediate_size": [48, 48, 48])")).mlp.intermediate_size == 48);
  CHECK(parse(config(R"("moe_intermediate_size": [24])")).moe.intermediate_size == 24);
  check_refused(
      config(R"("intermediate_size": [48, 64])"),
      "'intermediate_size[1]': want 48 as for the first block, since only per_layer_config says how "
      "blocks differ, got 64");
  check_refused(config(R"("intermediate_size": [])"),
                "'intermediate_size': want an integer, got a list of 0");
  check_refused(config(R"("intermediate_size": [48, 48.0])"), "'intermediate_size[1]': want an integer");
  check_refused(config(R"("layer_norm_epsilon": [0.1])"), "'layer_norm_epsilon': want a number");
}

TEST_CASE("hf config: the number of shared experts has no effect") {
  set_log_level(LogLevel::error);
  for (const char* number : {"0", "2"})
    CHECK(parse(config(cat("\"n_shared_experts\": ", number))) == parse(config("")));
  set_log_level(LogLevel::info);
  check_refused(config(R"("n_shared_experts": "one")"), "'n_shared_experts': want an integer");
}

TEST_CASE("hf config: messages stay short and printable, whatever the file says") {
  const std::string key(100000, 'k'), letters(100000, 'M');
  for (const std::string& text :
       {config("", R"("hybrid_override_pattern": ")" + letters + "x\""),
        config("", R"("hybrid_override_pattern": "M\u001b[31m\u00e9")"),
        config("", R"("layers_block_type": ["mlp"], "layer_types": [")" + letters + "\"]"),
        config(R"("n_groups": ")" + letters + "\""), config("\"per_layer_config\": [{\"" + key + "\": 1}]"),
        config("\"per_layer_config\": [{\"\\u001b[2J\": 1}]"),
        config(cat("\"", key, "\": 1, \"", key, "\": 2"))}) {
    try {
      parse(text);
      FAIL("not refused");
    } catch (const Error& error) {
      const std::string message = error.what();
      CHECK(message.size() < 500);
      CHECK(message.find('\x1b') == message.npos);
    }
  }
}

TEST_CASE("hf config: files keep their text") {
  const TestDir dir;
  const std::string text =
      config(R"("time_step_limit": [0.0, Infinity], "torch_dtype": "float32", "own": {"a": [1]})");
  spit(dir / "config.json", text);
  const HfConfigFile file = read_hf_config_file(dir.path());
  CHECK(file.text == text);
  CHECK(read_hf_config(dir / "config.json").hidden_size == 32);
  CHECK(with_dtype(file.text, DType::f32) == text);
  const std::string changed = with_dtype(file.text, DType::bf16);
  CHECK(changed.find("\"torch_dtype\": \"bfloat16\"") != changed.npos);
  CHECK(changed.find("    Infinity\n") != changed.npos);
  Json want = parse_json(text, "x");
  want["torch_dtype"] = "bfloat16";
  CHECK(parse_json(changed, "x") == want);
  CHECK(parse_json(with_dtype(R"({"dtype": "float32"})", DType::f64), "x")["dtype"] == "float64");
  CHECK(parse_json(with_dtype("{}", DType::bf16), "x")["torch_dtype"] == "bfloat16");
  CHECK_THROWS_WITH_AS(read_hf_config(dir / "none"), doctest::Contains("none: cannot open"), Error);
}

TEST_CASE("hf config: a made config reads back the same") {
  ModelConfig c;
  c.blocks = parse_pattern("MEM*-").blocks;
  c.vocab_size = 1000;
  c.mamba.time_step_limit_low = 0.01;
  c.moe.latent_size = 64;
  c.num_nextn_predict_layers = 1;
  c.mtp_blocks = parse_pattern("*-").blocks;
  c.eos_token_id = {2, 11};
  c.pad_token_id.reset();
  c.dtype = DType::bf16;
  c.mlp.bias = c.moe.bias = true;
  c.mamba.use_conv_bias = c.moe.norm_topk_prob = c.rescale_prenorm_residual = false;
  c.mamba.in_proj_bias = c.mamba.out_proj_bias = c.residual_in_fp32 = true;
  c.hidden_size = 48, c.attention.num_attention_heads = 6, c.attention.num_key_value_heads = 3,
  c.attention.head_dim = 10;
  c.mlp.intermediate_size = 52, c.mamba.num_heads = 12, c.mamba.head_dim = 14, c.mamba.n_groups = 2,
  c.mamba.ssm_state_size = 18;
  c.mamba.conv_kernel = 5, c.mamba.chunk_size = 20, c.moe.n_routed_experts = 16,
  c.moe.num_experts_per_tok = 3;
  c.moe.intermediate_size = 22, c.moe.shared_expert_intermediate_size = 26, c.moe.n_group = 4,
  c.moe.topk_group = 2;
  c.layer_norm_epsilon = 0.25, c.mamba.time_step_min = 0.01, c.mamba.time_step_max = 0.2,
  c.mamba.time_step_floor = 0.001;
  c.moe.routed_scaling_factor = 2.5, c.initializer_range = 0.03, c.max_position_embeddings = 77;
  const HfConfigFile made = make_hf_config(c);
  const ModelConfig back = parse(made.text);
  CHECK(back == c);
  CHECK(make_hf_config(back).text == made.text);
  CHECK(std::isinf(back.mamba.time_step_limit_high));
  CHECK(back.mtp_blocks == c.mtp_blocks);
  CHECK(back.dtype == DType::bf16);
  CHECK_NOTHROW(parse_json(made.text, "x", {.non_finite = false}));
}

TEST_CASE("hf config: ids that end a text") {
  const TestDir dir;
  ModelConfig c;
  CHECK(end_of_text_ids(dir.path(), c) == std::vector<std::int64_t>{2});
  spit(dir / "generation_config.json", R"({"eos_token_id": [2, 11], "temperature": 1.0})");
  CHECK(end_of_text_ids(dir.path(), c) == std::vector<std::int64_t>{2, 11});
  spit(dir / "generation_config.json", "{}");
  CHECK(end_of_text_ids(dir.path(), c) == std::vector<std::int64_t>{2});
  c.pad_token_id = 0, c.bos_token_id = 1;
  CHECK(parse_json(with_end_of_text_ids("", c, {2, 4}), "x") ==
        parse_json(R"({"bos_token_id": 1, "eos_token_id": [2, 4], "pad_token_id": 0})", "y"));
  CHECK(parse_json(with_end_of_text_ids(R"({"temperature": 1.5, "eos_token_id": 2})", c, {2, 4}), "x") ==
        parse_json(R"({"temperature": 1.5, "eos_token_id": [2, 4]})", "y"));
  std::filesystem::remove(dir / "generation_config.json");
  REQUIRE(::mkfifo((dir / "generation_config.json").c_str(), 0600) == 0);
  CHECK_THROWS_WITH_AS(end_of_text_ids(dir.path(), c), doctest::Contains("want a regular file, got a FIFO"),
                       Error);
}

TEST_CASE("hf config: the example and the golden configs") {
  const std::filesystem::path& root = source_dir();
  const std::filesystem::path tiny = root / "configs/nemotron_h_tiny";
  if (std::filesystem::exists(tiny)) CHECK(to_pattern(read_hf_config(tiny).blocks) == "MEM*-M*E");
  const auto golden = [&](const char* name) { return read_hf_config(root / "tests/goldens" / name); };
  if (!std::filesystem::exists(root / "tests/goldens/all_four")) {
    MESSAGE("no golden models: case did not run");
    return;
  }
  CHECK(to_pattern(golden("all_four").blocks) == "ME*-");
  CHECK(to_pattern(golden("v5_names").blocks) == "ME-*");
  const ModelConfig legacy = golden("legacy_names");
  CHECK(to_pattern(legacy.blocks) == "M*E-");
  CHECK(legacy.mamba.n_groups == 1);
  CHECK(legacy.mamba.conv_kernel == 2);
  CHECK(legacy.mamba.chunk_size == 10);
  const ModelConfig clamp = golden("time_step_clamp");
  CHECK(clamp.mamba.time_step_limit_low == 0.02);
  CHECK(clamp.mamba.time_step_limit_high == 0.5);
  CHECK(golden("biases").moe.latent_size == 20);
  CHECK((golden("biases").mamba.in_proj_bias && golden("biases").mamba.out_proj_bias));
  const ModelConfig pruned = golden("pruned");  // as transformers writes it
  CHECK(pruned.own_configs.size() == 5);
  CHECK(pruned.block(1).moe.n_routed_experts == 12);
  CHECK(pruned.block(2).mamba.num_heads == 8);
  CHECK(pruned.block(5).moe.latent_size == 20);
  CHECK(pruned.block(6).attention.num_attention_heads == 2);
  CHECK(pruned.block(7).moe.bias);
  const auto layers_of = [](const Json& config) {
    return nlohmann::json(config["per_layer_config"]);
  };  // in any order
  CHECK(layers_of(parse_json(make_hf_config(pruned).text, "x")) ==
        layers_of(read_json_file(root / "tests/goldens/pruned/config.json")));
}

TEST_CASE("hf config: any value under any key is refused or gives a config") {
  Json intact = parse_json(make_hf_config([] {
                             ModelConfig c;
                             c.blocks = parse_pattern("ME*-").blocks;
                             c.num_nextn_predict_layers = 1;
                             return c;
                           }())
                               .text,
                           "x");
  for (const char* key : {"per_layer_config", "quantization_config", "text_config", "block_configs",
                          "layer_types", "layers_block_type", "mtp_layers_block_type", "num_local_experts",
                          "mamba_dt_limit", "dtype", "sliding_window", "n_shared_experts"})
    intact[key] = nullptr;
  Json values =
      parse_json(R"([null, true, 0, -1, 1, 3, 16777216, 4611686018427387905, 18446744073709551615, 0.5,
      -1e308, 1e308, Infinity, NaN, "", "M", "Infinity", [], [[]], [1, 1], [1, 2], [0, 1e308], ["M"], ["/"], [null],
      {}, {"__float__": "NaN"}, {"0": {"hidden_size": 1}}, {"1": {"num_experts_per_tok": 1}}, {"hidden_size": [1]}])",
                 "values");
  values.push_back(std::string(2000, 'M'));
  values.push_back(std::string(2000, '/'));
  values.push_back(std::string("\x1b[2J\xff\n"));
  set_log_level(LogLevel::error);
  int refused = 0, read = 0;
  for (const auto& item : intact.items())
    for (const Json& value : values) {
      Json damaged = intact;
      damaged[item.key()] = value;
      try {
        const ModelConfig c = parse_hf_config(JsonView(damaged, "config.json"));
        count_tensors(tensor_specs(c));
        count_tensors(mtp_tensor_specs(c));
        ++read;
      } catch (const Error& error) {
        const std::string message = error.what();
        CAPTURE(message);
        CHECK(message.starts_with("config.json"));
        CHECK(message.size() < 700);
        CHECK(message.find('\x1b') == message.npos);
        ++refused;
      }
    }
  set_log_level(LogLevel::info);
  CHECK(refused > 800);
  CHECK(read > 200);
}

TEST_CASE("hf config: random damage is refused or gives a config") {
  const std::string intact = make_hf_config([] {
                               ModelConfig c;
                               c.blocks = parse_pattern("ME*-").blocks;
                               c.mamba.time_step_limit_low = 0.1;
                               return c;
                             }())
                                 .text;
  const RandomStream random(21, "config damage");
  const std::string likely = "0123456789[]{},:\"-.eE INfinityNaN";
  set_log_level(LogLevel::error);
  int refused = 0, read = 0;
  for (std::uint64_t i = 0; i < 4000; ++i) {
    std::string text = intact;
    for (std::uint64_t k = 0; k <= random.below(8 * i, 2); ++k) {
      const std::size_t at = random.below(8 * i + 3 * k + 1, text.size());
      if (random.below(8 * i + 3 * k + 2, 2))
        text[at] = likely[random.below(8 * i + 3 * k + 3, likely.size())];
      else
        text[at] = static_cast<char>(random.below(8 * i + 3 * k + 3, 256));
    }
    try {
      tensor_specs(parse(text));
      ++read;
    } catch (const Error&) {
      ++refused;
    }
  }
  set_log_level(LogLevel::info);
  CHECK(refused > 500);
  CHECK(read > 500);
}
