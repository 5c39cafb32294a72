#include "data/hf/hf_config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/log.h"
#include "data/files/regular_file.h"
#include "data/json/atomic_file.h"

namespace nemocube {
namespace {
constexpr JsonLimits config_limits{.max_bytes = std::int64_t{16} << 20, .max_depth = 50};

/// Looks keys up under all their names.
class Reader {
 public:
  explicit Reader(const JsonView& object) : object_(object) {}

  std::optional<JsonView> find(std::initializer_list<const char*> names) const {
    std::optional<JsonView> found;
    const char* found_name = nullptr;
    for (const char* name : names) {
      const std::optional<JsonView> value = object_.find(name);
      if (!value) continue;
      if (found && !(found->value() == value->value()))
        fail(object_.file(), ": '", found_name, "' and '", name,
             "' mean the same and differ: ", dump_json(found->value(), -1), " and ",
             dump_json(value->value(), -1));
      if (!found) found_name = name;
      found = value;
    }
    return found;
  }

  void read(std::int64_t& to, std::initializer_list<const char*> names) const {
    if (const auto v = find(names)) to = v->integer();
  }
  void read(double& to, std::initializer_list<const char*> names) const {
    if (const auto v = find(names)) to = v->number();
  }
  void read(bool& to, std::initializer_list<const char*> names) const {
    if (const auto v = find(names)) to = v->boolean();
  }
  const JsonView& object() const { return object_; }

 private:
  const JsonView& object_;
};

std::vector<BlockKind> read_list(const JsonView& list) {
  std::vector<BlockKind> blocks;
  for (const JsonView& item : list.elements()) {
    const std::string& name = item.string();
    if (name == "mamba" || name == "linear_attention")
      blocks.push_back(BlockKind::mamba);
    else if (name == "attention" || name == "full_attention")
      blocks.push_back(BlockKind::attention);
    else if (name == "mlp")
      blocks.push_back(BlockKind::mlp);
    else if (name == "moe")
      blocks.push_back(BlockKind::moe);
    else
      item.refuse("mamba (linear_attention), attention (full_attention), mlp or moe");
  }
  return blocks;
}

BlockPattern read_pattern(const JsonView& pattern) {
  try {
    return parse_pattern(pattern.string());
  } catch (const Error& error) {
    const std::string text = error.what();
    if (text.starts_with(pattern.file())) throw;
    fail(pattern.file(), ": ", text);
  }
}

/// Multi-token prediction spelled behind the layers: "ME*E/*E/*E".
void read_pattern_tail(NemotronHConfig& config, const BlockPattern& pattern, const Reader& reader) {
  if (pattern.mtp.empty()) return;
  for (const auto& depth : pattern.mtp)
    require(depth == pattern.mtp[0], reader.object().file(),
            ": 'hybrid_override_pattern': want the same blocks behind each '/', got ",
            to_pattern(pattern.mtp[0]), " and ", to_pattern(depth));
  config.mtp_blocks = pattern.mtp[0];
  config.num_nextn_predict_layers = static_cast<std::int64_t>(pattern.mtp.size());
}

void read_layers(NemotronHConfig& config, const Reader& reader) {
  const std::string& file = reader.object().file();
  std::optional<JsonView> pattern = reader.find({"hybrid_override_pattern"});
  std::optional<std::vector<BlockKind>> list;
  for (const char* key : {"layers_block_type", "layer_types"})
    if (const auto value = reader.find({key})) {
      const std::vector<BlockKind> blocks = read_list(*value);
      require(!list || *list == blocks, file,
              ": 'layers_block_type' and 'layer_types' differ: ", to_pattern(list ? *list : blocks), " and ",
              to_pattern(blocks));
      list = blocks;
    }
  require(list || pattern, file,
          ": the layers are not given; want hybrid_override_pattern, layers_block_type or layer_types");
  if (pattern) {
    const BlockPattern parsed = read_pattern(*pattern);
    config.blocks = parsed.blocks;
    read_pattern_tail(config, parsed, reader);
  }
  if (list) config.blocks = *list;
  if (const auto count = reader.find({"num_hidden_layers"}); count && count->integer() != config.num_layers())
    log_warning(file, ": 'num_hidden_layers' is ", count->integer(), ", but ", config.num_layers(),
                " layers are listed; the list counts");

  reader.read(config.num_nextn_predict_layers, {"num_nextn_predict_layers"});
  std::optional<std::vector<BlockKind>> mtp_list;
  if (const auto value = reader.find({"mtp_layers_block_type"})) mtp_list = read_list(*value);
  if (mtp_list && *mtp_list != usual_mtp_blocks()) {
    config.mtp_blocks = *mtp_list;
  } else if (const auto value = reader.find({"mtp_hybrid_override_pattern"})) {
    const BlockPattern parsed = read_pattern(*value);
    if (!parsed.mtp.empty()) value->refuse("the blocks of one depth, without '/'");
    config.mtp_blocks = parsed.blocks;
  }
}

void read_time_step_limit(NemotronHConfig& config, const Reader& reader) {
  const auto limit = reader.find({"time_step_limit", "mamba_dt_limit"});
  if (!limit) return;
  const std::vector<JsonView> ends = limit->elements();
  if (ends.size() != 2) limit->refuse("a list of two numbers");
  config.time_step_limit_low = ends[0].number();
  config.time_step_limit_high = ends[1].number();
  // Writers without a token for infinity put a number that no time step reaches.
  if (config.time_step_limit_high >= 1e30)
    config.time_step_limit_high = std::numeric_limits<double>::infinity();
}

void read_tokens(NemotronHConfig& config, const Reader& reader) {
  const auto read_id = [&](std::optional<std::int64_t>& to, const char* key) {
    if (const auto v = reader.find({key})) to = v->integer();
    if (reader.object().has_null(key)) to.reset();
  };
  read_id(config.pad_token_id, "pad_token_id");
  read_id(config.bos_token_id, "bos_token_id");
  if (reader.object().has_null("eos_token_id")) config.eos_token_id.clear();
  if (const auto v = reader.find({"eos_token_id"})) {
    config.eos_token_id.clear();
    if (v->value().is_array())
      for (const JsonView& id : v->elements()) config.eos_token_id.push_back(id.integer());
    else
      config.eos_token_id.push_back(v->integer());
  }
}

void check_architecture(const Reader& reader) {
  const JsonView& object = reader.object();
  const auto refuse_puzzle = [&](const std::string& sign) {
    fail(object.file(), ": NemotronHPuzzle models (each layer with sizes of its own; seen by ", sign,
         ") are not supported; want nemotron_h");
  };
  const auto is_puzzle = [](const std::string& name) {
    return name.find("Puzzle") != name.npos || name.find("puzzle") != name.npos;
  };
  const auto type = object.find("model_type");
  bool named = false;
  if (const auto list = object.find("architectures"))
    for (const JsonView& name : list->elements()) {
      if (is_puzzle(name.string())) refuse_puzzle(name.string());
      named = named || name.string().starts_with("NemotronH");
    }
  if (type && is_puzzle(type->string())) refuse_puzzle(type->string());
  if (object.has("block_configs")) refuse_puzzle("block_configs");
  if (type && type->string() != "nemotron_h") type->refuse("\"nemotron_h\"");
  require(type || named, object.file(), ": 'model_type': want \"nemotron_h\", got none");
}

void check_fixed(const Reader& reader, const char* key, const char* wish) {
  const auto value = reader.find({key});
  if (value && value->string() != wish) value->refuse(cat('"', wish, '"'));
}

/// Keys that Hugging Face's class does not read either, or that would be wrong to guess about.
void warn_without_effect(const Reader& reader) {
  const auto warn = [&](const char* key, const auto& value) {
    log_warning(reader.object().file(), ": '", key, "' is ", value, " and has no effect");
  };
  for (const char* key : {"attention_dropout", "hidden_dropout"})
    if (const auto value = reader.find({key}); value && value->number() != 0) warn(key, value->number());
  if (const auto value = reader.find({"attention_bias"}); value && value->boolean())
    warn("attention_bias", "true");
  if (const auto value = reader.find({"sliding_window"})) warn("sliding_window", value->integer());
}

/// Names of dtypes in Hugging Face's configs; nothing for "auto" and for types that are not for weights.
std::optional<DType> read_dtype(const Reader& reader) {
  const auto value = reader.find({"dtype", "torch_dtype"});
  if (!value) return std::nullopt;
  std::string_view name = value->string();
  if (name.starts_with("torch.")) name.remove_prefix(6);
  if (name == "bfloat16") return DType::bf16;
  if (name == "float32" || name == "float16") return DType::f32;
  if (name == "float64") return DType::f64;
  if (name == "auto") return std::nullopt;
  value->refuse("bfloat16, float16, float32 or float64");
}

const char* hf_name(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "bfloat16";
    case DType::f32:
      return "float32";
    case DType::f64:
      return "float64";
    default:
      fail("dtype of stored weights: want bf16, f32 or f64, got ", dtype);
  }
}

std::filesystem::path config_path(const std::filesystem::path& path) {
  std::error_code error;  // opening the file will tell
  return std::filesystem::is_directory(path, error) ? path / "config.json" : path;
}
}  // namespace

NemotronHConfig parse_hf_config(const JsonView& object) {
  if (!object.value().is_object()) object.refuse("an object");
  const Reader r(object);
  check_architecture(r);
  check_fixed(r, "mamba_hidden_act", "silu");
  check_fixed(r, "mlp_hidden_act", "relu2");
  warn_without_effect(r);

  NemotronHConfig c;
  read_layers(c, r);
  r.read(c.vocab_size, {"vocab_size"});
  r.read(c.hidden_size, {"hidden_size"});
  r.read(c.layer_norm_epsilon, {"layer_norm_epsilon", "norm_eps", "rms_norm_eps"});
  r.read(c.residual_in_fp32, {"residual_in_fp32"});
  r.read(c.tie_word_embeddings, {"tie_word_embeddings"});

  r.read(c.num_attention_heads, {"num_attention_heads"});
  if (object.has_null("num_key_value_heads")) c.num_key_value_heads = c.num_attention_heads;
  r.read(c.num_key_value_heads, {"num_key_value_heads", "num_query_groups"});
  r.read(c.head_dim, {"head_dim", "attention_head_dim", "kv_channels"});
  r.read(c.intermediate_size, {"intermediate_size"});
  r.read(c.mlp_bias, {"mlp_bias"});

  r.read(c.mamba_num_heads, {"mamba_num_heads"});
  r.read(c.mamba_head_dim, {"mamba_head_dim"});
  r.read(c.n_groups, {"n_groups", "mamba_n_groups", "mamba_num_groups"});
  r.read(c.ssm_state_size, {"ssm_state_size", "mamba_state_dim"});
  r.read(c.conv_kernel, {"conv_kernel", "mamba_d_conv"});
  r.read(c.chunk_size, {"chunk_size", "mamba_chunk_size"});
  r.read(c.use_conv_bias, {"use_conv_bias", "mamba_conv_bias"});
  r.read(c.use_bias, {"use_bias"});
  r.read(c.time_step_min, {"time_step_min", "mamba_dt_min"});
  r.read(c.time_step_max, {"time_step_max", "mamba_dt_max"});
  r.read(c.time_step_floor, {"time_step_floor", "mamba_dt_init_floor"});
  read_time_step_limit(c, r);

  r.read(c.n_routed_experts, {"n_routed_experts", "num_local_experts"});
  r.read(c.num_experts_per_tok, {"num_experts_per_tok"});
  r.read(c.moe_intermediate_size, {"moe_intermediate_size"});
  r.read(c.moe_shared_expert_intermediate_size, {"moe_shared_expert_intermediate_size"});
  r.read(c.n_shared_experts, {"n_shared_experts"});
  r.read(c.moe_latent_size, {"moe_latent_size"});
  r.read(c.n_group, {"n_group"});
  r.read(c.topk_group, {"topk_group"});
  r.read(c.norm_topk_prob, {"norm_topk_prob"});
  r.read(c.routed_scaling_factor, {"routed_scaling_factor"});

  r.read(c.initializer_range, {"initializer_range"});
  r.read(c.rescale_prenorm_residual, {"rescale_prenorm_residual"});
  r.read(c.max_position_embeddings, {"max_position_embeddings"});
  read_tokens(c, r);
  c.dtype = read_dtype(r);
  try {
    c.validate();
  } catch (const Error& error) {
    fail(object.file(), ": ", error.what());
  }
  return c;
}

HfConfigFile read_hf_config_file(const std::filesystem::path& path) {
  const std::filesystem::path file = config_path(path);
  std::string text = read_text_file(file, config_limits.max_bytes);
  const Json document = parse_json(text, file.string(), config_limits);
  return {parse_hf_config(JsonView(document, file.string())), std::move(text)};
}

NemotronHConfig read_hf_config(const std::filesystem::path& path) { return read_hf_config_file(path).config; }

HfConfigFile make_hf_config(const NemotronHConfig& c) {
  Json j;
  j["architectures"] = {"NemotronHForCausalLM"};
  j["model_type"] = "nemotron_h";
  j["vocab_size"] = c.vocab_size;
  j["hidden_size"] = c.hidden_size;
  j["num_hidden_layers"] = c.num_layers();
  j["hybrid_override_pattern"] = to_pattern(c.blocks);
  j["layer_norm_epsilon"] = c.layer_norm_epsilon;
  j["residual_in_fp32"] = c.residual_in_fp32;
  j["tie_word_embeddings"] = c.tie_word_embeddings;
  j["num_attention_heads"] = c.num_attention_heads;
  j["num_key_value_heads"] = c.num_key_value_heads;
  j["head_dim"] = c.head_dim;
  j["attention_bias"] = false;
  j["intermediate_size"] = c.intermediate_size;
  j["mlp_bias"] = c.mlp_bias;
  j["mlp_hidden_act"] = "relu2";
  j["mamba_num_heads"] = c.mamba_num_heads;
  j["mamba_head_dim"] = c.mamba_head_dim;
  j["mamba_hidden_act"] = "silu";
  j["n_groups"] = c.n_groups;
  j["ssm_state_size"] = c.ssm_state_size;
  j["conv_kernel"] = c.conv_kernel;
  j["chunk_size"] = c.chunk_size;
  j["use_conv_bias"] = c.use_conv_bias;
  j["use_bias"] = c.use_bias;
  j["time_step_min"] = c.time_step_min;
  j["time_step_max"] = c.time_step_max;
  j["time_step_floor"] = c.time_step_floor;
  // Left out without a clamp: the default everywhere, and strict parsers know no token for infinity.
  if (c.time_step_limit_low != 0 || !std::isinf(c.time_step_limit_high))
    j["time_step_limit"] = {c.time_step_limit_low, std::min(c.time_step_limit_high, 1e30)};
  j["n_routed_experts"] = c.n_routed_experts;
  j["num_experts_per_tok"] = c.num_experts_per_tok;
  j["moe_intermediate_size"] = c.moe_intermediate_size;
  j["moe_shared_expert_intermediate_size"] = c.moe_shared_expert_intermediate_size;
  j["n_shared_experts"] = c.n_shared_experts;
  j["moe_latent_size"] = c.moe_latent_size > 0 ? Json(c.moe_latent_size) : Json(nullptr);
  j["n_group"] = c.n_group;
  j["topk_group"] = c.topk_group;
  j["norm_topk_prob"] = c.norm_topk_prob;
  j["routed_scaling_factor"] = c.routed_scaling_factor;
  j["num_nextn_predict_layers"] = c.num_nextn_predict_layers;
  if (c.num_nextn_predict_layers > 0) j["mtp_hybrid_override_pattern"] = to_pattern(c.mtp_blocks);
  j["initializer_range"] = c.initializer_range;
  j["rescale_prenorm_residual"] = c.rescale_prenorm_residual;
  j["max_position_embeddings"] = c.max_position_embeddings;
  j["pad_token_id"] = c.pad_token_id ? Json(*c.pad_token_id) : Json(nullptr);
  j["bos_token_id"] = c.bos_token_id ? Json(*c.bos_token_id) : Json(nullptr);
  const auto& eos = c.eos_token_id;
  j["eos_token_id"] = eos.empty() ? Json(nullptr) : eos.size() == 1 ? Json(eos[0]) : Json(eos);
  if (c.dtype) j["torch_dtype"] = hf_name(*c.dtype);
  return {c, dump_json(j) + "\n"};
}

std::string with_dtype(const std::string& text, DType dtype) {
  Json document = parse_json(text, "config.json", config_limits);
  const std::string name = hf_name(dtype);
  bool found = false, changed = false;
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto value = document.find(key);
    if (value == document.end()) continue;
    found = true;
    if (*value == name) continue;
    *value = name;
    changed = true;
  }
  if (!found) document["torch_dtype"] = name;
  return found && !changed ? text : dump_json(document) + "\n";
}

void write_hf_config(const std::filesystem::path& path, const HfConfigFile& file,
                     std::optional<DType> dtype) {
  write_file_atomically(config_path(path), dtype ? with_dtype(file.text, *dtype) : file.text);
}

std::vector<std::int64_t> end_of_text_ids(const std::filesystem::path& directory,
                                          const NemotronHConfig& config) {
  const std::filesystem::path path = directory / "generation_config.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return config.eos_token_id;
  const Json document = read_json_file(path, config_limits);
  NemotronHConfig copy = config;
  const JsonView object(document, path.string());
  if (object.has("eos_token_id")) read_tokens(copy, Reader(object));
  return copy.eos_token_id;
}

}  // namespace nemocube
