#include "data/hf/hf_config.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "core/log.h"
#include "data/files/regular_file.h"
#include "data/hf/families/family.h"
#include "data/hf/hf_config_refused.h"
#include "data/hf/language_part.h"
#include "data/hf/quantization_config.h"

namespace nemocube {
namespace {
constexpr JsonLimits config_limits{.max_bytes = std::int64_t{16} << 20, .max_depth = 50};

/// Null and -1 are no token.
void read_tokens(ModelConfig& config, const JsonView& object) {
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

ModelConfig parse_hf_config(const JsonView& object) {
  if (!object.value().is_object()) object.refuse("an object");
  if (const auto part = language_part(object)) {
    declared_quantization(object);  // throws for what is not read
    ModelConfig config = parse_hf_config(*part);
    if (!config.dtype) config.dtype = read_dtype(object);
    const auto type = object.find("model_type");
    for (const Wrapper& wrapper : family_of(config).wrappers)
      if (type && type->string() == wrapper.model_type) {
        const auto tied = object.find("tie_word_embeddings");
        config.tie_word_embeddings = tied ? tied->boolean() : wrapper.tied_by_default;
        if (!wrapper.caps_logits && config.logit_softcap > 0) {
          log_warning(object.file(), ": 'final_logit_softcapping' is ", config.logit_softcap,
                      " and has no effect in models of type ", wrapper.model_type);
          config.logit_softcap = 0;
        }
      }
    return config;
  }
  const Family& family = family_of_language_model(object);
  ModelConfig c;
  c.names = *family.names;
  family.read(c, object);
  read_tokens(c, object);
  c.dtype = read_dtype(object);
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

ModelConfig read_hf_config(const std::filesystem::path& path) { return read_hf_config_file(path).config; }

HfConfigFile make_hf_config(const ModelConfig& c) {
  Json j;
  family_of(c).write(c, j);
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

std::vector<std::int64_t> end_of_text_ids(const std::filesystem::path& directory, const ModelConfig& config) {
  const std::filesystem::path path = directory / "generation_config.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return config.eos_token_id;
  const Json document = read_json_file(path, config_limits);
  ModelConfig copy = config;
  const JsonView object(document, path.string());
  if (object.has("eos_token_id")) read_tokens(copy, object);
  return copy.eos_token_id;
}

std::string with_end_of_text_ids(const std::string& text, const ModelConfig& config,
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
