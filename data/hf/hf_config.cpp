#include "data/hf/hf_config.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "core/log.h"
#include "data/files/regular_file.h"
#include "data/hf/hf_config_keys.h"
#include "data/hf/hf_config_refused.h"
#include "data/hf/language_part.h"
#include "data/hf/per_layer_config.h"
#include "data/hf/quantization_config.h"
#include "data/json/atomic_file.h"
#include "model/blocks/block_kinds.h"

namespace nemocube {
namespace {
constexpr JsonLimits config_limits{.max_bytes = std::int64_t{16} << 20, .max_depth = 50};

/// "mamba (linear_attention, M), mlp (-) or moe (E)"
std::string known_blocks() {
  const auto kinds = block_kinds();
  std::string text;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const char* between = i == 0 ? "" : i + 1 < kinds.size() ? ", " : " or ";
    const std::string alias = kinds[i]->alias ? cat(kinds[i]->alias, ", ") : "";
    text += cat(between, kinds[i], " (", alias, kinds[i]->letter, ")");
  }
  return text;
}

/// The letter of a block that a list names, "M" or "mamba".
char read_block(const JsonView& item, std::string_view other_letters = "") {
  const std::string_view name = item.string();
  if (name.size() == 1 && other_letters.find(name) != other_letters.npos) return name[0];
  const auto kind = name.size() == 1 ? find_block_kind(name[0]) : find_block_kind(name);
  if (!kind) item.refuse(known_blocks());
  return letter_of(*kind);
}

std::vector<BlockKind> read_list(const JsonView& list) {
  std::string letters;
  for (const JsonView& item : list.elements()) letters += read_block(item);
  return parse_pattern(letters).blocks;
}

/// A pattern is a string of letters or a list of them.
BlockPattern read_pattern(const JsonView& pattern) {
  std::string letters;
  if (pattern.value().is_array())
    for (const JsonView& item : pattern.elements()) letters += read_block(item, "|/");
  else
    letters = pattern.string();
  try {
    return parse_pattern(letters);
  } catch (const Error& error) {
    fail(pattern.file(), ": ", error.what());
  }
}

/// Multi-token prediction spelled behind the layers: "ME*E/*E/*E".
void read_pattern_tail(NemotronHConfig& config, const BlockPattern& pattern, const JsonView& object) {
  if (pattern.mtp.empty()) return;
  for (const auto& depth : pattern.mtp)
    require(depth == pattern.mtp[0], object.file(),
            ": 'hybrid_override_pattern': want the same blocks behind each '/', got ",
            brief(to_pattern(pattern.mtp[0])), " and ", brief(to_pattern(depth)));
  config.mtp_blocks = pattern.mtp[0];
  config.num_nextn_predict_layers = static_cast<std::int64_t>(pattern.mtp.size());
}

void read_layers(NemotronHConfig& config, const JsonView& object) {
  const std::string& file = object.file();
  std::optional<JsonView> pattern = object.find("hybrid_override_pattern");
  std::optional<std::vector<BlockKind>> list;
  for (const char* key : {"layers_block_type", "layer_types"})
    if (const auto value = object.find(key)) {
      const std::vector<BlockKind> blocks = read_list(*value);
      require(!list || *list == blocks, file,
              ": 'layers_block_type' and 'layer_types' differ: ", brief(to_pattern(list ? *list : blocks)),
              " and ", brief(to_pattern(blocks)));
      list = blocks;
    }
  require(list || pattern, file,
          ": the layers are not given; want hybrid_override_pattern, layers_block_type or layer_types");
  if (pattern) {
    const BlockPattern parsed = read_pattern(*pattern);
    config.blocks = parsed.blocks;
    read_pattern_tail(config, parsed, object);
  }
  if (list) config.blocks = *list;
  if (const auto count = object.find("num_hidden_layers"); count && count->integer() != config.num_layers())
    log_warning(file, ": 'num_hidden_layers' is ", count->integer(), ", but ", config.num_layers(),
                " layers are listed; the list counts");

  std::optional<std::vector<BlockKind>> mtp_list;
  if (const auto value = object.find("mtp_layers_block_type")) mtp_list = read_list(*value);
  if (mtp_list && *mtp_list != usual_mtp_blocks()) {
    config.mtp_blocks = *mtp_list;
  } else if (const auto value = object.find("mtp_hybrid_override_pattern")) {
    const BlockPattern parsed = read_pattern(*value);
    if (!parsed.mtp.empty()) value->refuse("the blocks of one depth, without '/'");
    config.mtp_blocks = parsed.blocks;
  }
}

/// Null and -1 are no token.
void read_tokens(NemotronHConfig& config, const JsonView& object) {
  constexpr std::int64_t no_token = -1;
  const auto read_id = [&](std::optional<std::int64_t>& to, const char* key) {
    if (const auto v = object.find(key)) to = v->integer();
    if (object.has_null(key) || to == no_token) to.reset();
  };
  read_id(config.pad_token_id, "pad_token_id");
  read_id(config.bos_token_id, "bos_token_id");
  if (object.has_null("eos_token_id")) config.eos_token_id.clear();
  if (const auto v = object.find("eos_token_id")) {
    config.eos_token_id.clear();
    if (v->value().is_array())
      for (const JsonView& id : v->elements()) config.eos_token_id.push_back(id.integer());
    else
      config.eos_token_id.push_back(v->integer());
    std::erase(config.eos_token_id, no_token);
  }
}

void check_fixed(const JsonView& object, const char* key, const char* wish) {
  const auto value = object.find(key);
  if (value && value->string() != wish) value->refuse(cat('"', wish, '"'));
}

/// Warns about keys that seem to shape the model but have no effect, here as in Hugging Face's class.
void warn_without_effect(const JsonView& object, bool has_moe) {
  const auto warn = [&](const char* key, const auto& value) {
    log_warning(object.file(), ": '", key, "' is ", value, " and has no effect");
  };
  for (const char* key : {"attention_dropout", "hidden_dropout"})
    if (const auto value = object.find(key); value && value->number() != 0) warn(key, value->number());
  if (const auto value = object.find("attention_bias"); value && value->boolean())
    warn("attention_bias", "true");
  if (const auto value = object.find("sliding_window")) warn("sliding_window", value->integer());
  // Hugging Face's class gives every MoE block one shared expert of moe_shared_expert_intermediate_size.
  if (const auto value = object.find("n_shared_experts"); value && value->integer() != 1 && has_moe)
    warn("n_shared_experts", value->integer());
}

/// "float32" of "float32" and of "torch.float32".
std::string_view dtype_name(const JsonView& value) {
  std::string_view name = value.string();
  if (name.starts_with("torch.")) name.remove_prefix(6);
  return name;
}

/// The dtype that a Hugging Face config names; nothing for "auto" and for types that weights cannot have.
std::optional<DType> read_dtype(const JsonView& object) {
  const auto current = object.find("dtype"), old = object.find("torch_dtype");
  if (!current && !old) return std::nullopt;
  require(!current || !old || dtype_name(*current) == dtype_name(*old), object.file(),
          ": 'dtype' and 'torch_dtype' mean the same and differ: ", current ? brief(current->value()) : "",
          " and ", old ? brief(old->value()) : "");
  const JsonView& value = current ? *current : *old;
  const std::string_view name = dtype_name(value);
  if (name == "bfloat16") return DType::bf16;
  if (name == "float32" || name == "float16") return DType::f32;
  if (name == "float64") return DType::f64;
  if (name == "auto") return std::nullopt;
  value.refuse("bfloat16, float16, float32 or float64");
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
  std::error_code error;  // an error shows when the file is opened
  return std::filesystem::is_directory(path, error) ? path / "config.json" : path;
}
}  // namespace

NemotronHConfig parse_hf_config(const JsonView& object) {
  if (!object.value().is_object()) object.refuse("an object");
  if (const auto part = language_part(object)) {
    declared_quantization(object);  // throws for what is not read
    NemotronHConfig config = parse_hf_config(*part);
    if (!config.dtype) config.dtype = read_dtype(object);
    return config;
  }
  refuse_other_models(object);
  check_fixed(object, "mamba_hidden_act", "silu");
  check_fixed(object, "mlp_hidden_act", "relu2");

  NemotronHConfig c;
  read_layers(c, object);
  read_model_keys(c, object);
  read_per_layer_config(c, object);
  read_tokens(c, object);
  c.dtype = read_dtype(object);
  warn_without_effect(object, c.has_experts());
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
  j["num_hidden_layers"] = c.num_layers();
  j["hybrid_override_pattern"] = to_pattern(c.blocks);
  if (c.num_nextn_predict_layers > 0) j["mtp_hybrid_override_pattern"] = to_pattern(c.mtp_blocks);
  j["attention_bias"] = false;
  j["n_shared_experts"] = 1;
  j["mlp_hidden_act"] = "relu2";
  j["mamba_hidden_act"] = "silu";
  write_model_keys(c, j);
  write_per_layer_config(c, j);
  j["pad_token_id"] = c.pad_token_id ? Json(*c.pad_token_id) : Json(nullptr);
  j["bos_token_id"] = c.bos_token_id ? Json(*c.bos_token_id) : Json(nullptr);
  const auto& eos = c.eos_token_id;
  j["eos_token_id"] = eos.empty() ? Json(nullptr) : eos.size() == 1 ? Json(eos[0]) : Json(eos);
  if (c.dtype) j["torch_dtype"] = hf_name(*c.dtype);
  return {c, dump_json(j) + "\n"};
}

namespace {
struct DTypeKeys {
  bool found = false, changed = false;
};

DTypeKeys set_dtype(Json& config, const std::string& name) {
  DTypeKeys entries;
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto value = config.find(key);
    if (value == config.end()) continue;
    entries.found = true;
    if (*value == name) continue;
    *value = name;
    entries.changed = true;
  }
  return entries;
}
}  // namespace

std::string with_dtype(const std::string& text, DType dtype) {
  Json document = parse_json(text, "config.json", config_limits);
  const std::string name = hf_name(dtype);
  DTypeKeys entries = set_dtype(document, name);
  if (const auto part = language_part(JsonView(document, "config.json"))) {
    const DTypeKeys inner = set_dtype(document.at(part->place()), name);
    entries = {entries.found || inner.found, entries.changed || inner.changed};
  }
  if (!entries.found) document["torch_dtype"] = name;
  return entries.found && !entries.changed ? text : dump_json(document) + "\n";
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
  if (object.has("eos_token_id")) read_tokens(copy, object);
  return copy.eos_token_id;
}

std::string with_end_of_text_ids(const std::string& text, const NemotronHConfig& config,
                                 const std::vector<std::int64_t>& ids) {
  Json document = Json::object();
  if (!text.empty())
    document = parse_json(text, "generation_config.json", config_limits);
  else if (config.bos_token_id)
    document["bos_token_id"] = *config.bos_token_id;
  if (!document.is_object()) JsonView(document, "generation_config.json").refuse("an object");
  document["eos_token_id"] = ids;
  if (text.empty() && config.pad_token_id) document["pad_token_id"] = *config.pad_token_id;
  return dump_json(document) + "\n";
}

}  // namespace nemocube
