#include "data/peft/peft_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/quote.h"
#include "data/json/json.h"

namespace nemocube {
namespace {
namespace fs = std::filesystem;

constexpr JsonLimits peft_config_limits{.max_bytes = std::int64_t{64} << 20, .max_depth = 20};
constexpr std::int64_t most_rank = 1 << 20;
constexpr std::size_t most_patterns = 10'000;

/// Fields that are read below, and fields that only tell how the adapter came to be or is used.
constexpr std::string_view known_fields[] = {"alpha_pattern",
                                             "auto_mapping",
                                             "base_model_name_or_path",
                                             "bias",
                                             "eva_config",
                                             "exclude_modules",
                                             "inference_mode",
                                             "init_lora_weights",
                                             "layers_pattern",
                                             "layers_to_transform",
                                             "lora_alpha",
                                             "lora_dropout",
                                             "megatron_core",
                                             "modules_to_save",
                                             "peft_type",
                                             "peft_version",
                                             "qalora_group_size",
                                             "r",
                                             "rank_pattern",
                                             "revision",
                                             "target_modules",
                                             "target_parameters",
                                             "task_type",
                                             "use_rslora"};

struct RefusedField {
  std::string_view name, reason;
};
constexpr RefusedField refused_fields[] = {
    {"use_dora", "DoRA's magnitudes are not supported"},
    {"lora_bias", "adapters with a bias are not supported"},
    {"fan_in_fan_out", "the model's weights are [out, in]"},
    {"layer_replication", "the model's layers are not repeated"},
    {"trainable_token_indices", "embeddings of single tokens are not adapted"},
    {"use_qalora", "QALoRA is not supported"},
    {"corda_config", "CorDA changes the base weights"},
    {"loftq_config", "LoftQ changes the base weights"},
    {"lora_ga_config", "LoRA-GA changes the base weights"},
};

bool is_set(const Json& value) {
  if (value.is_structured()) return !value.empty();
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.is_null() && value != false;
}

void refuse_other_fields(const JsonView& config) {
  for (const auto& [key, value] : config.value().items()) {
    if (std::ranges::find(known_fields, key) != std::end(known_fields) || !is_set(value)) continue;
    const auto refused = std::ranges::find(refused_fields, std::string_view(key), &RefusedField::name);
    config.member(key).refuse(
        cat("null, false or no such key (",
            refused == std::end(refused_fields) ? "its meaning is not supported" : refused->reason, ')'));
  }
}

std::int64_t rank_from(const JsonView& value) {
  if (!value.value().is_number_integer() || value.integer() < 1 || value.integer() > most_rank)
    value.refuse(cat("a rank, an integer from 1 to ", most_rank));
  return value.integer();
}

double alpha_from(const JsonView& value) {
  if (!value.value().is_number() || !std::isfinite(value.number()) || value.number() <= 0)
    value.refuse("a finite number above 0");
  return value.number();
}

double dropout_from(const JsonView& value) {
  if (!value.value().is_number() || !(value.number() >= 0 && value.number() < 1))
    value.refuse("a number from 0 on and below 1");
  return value.number();
}

template <class T>
PatternValues<T> patterns_from(const JsonView& config, const char* key, T (*value_from)(const JsonView&)) {
  PatternValues<T> patterns;
  const auto found = config.find(key);
  if (!found) return patterns;
  if (!found->value().is_object()) found->refuse("an object");
  require(found->value().size() <= most_patterns, config.file(), ": '", key, "': want at most ",
          most_patterns, " entries, got ", found->value().size());
  for (const auto& item : found->value().items()) {
    const T value = value_from(found->member(item.key()));
    try {
      patterns.add(item.key(), value);
    } catch (const Error& error) {
      fail(config.file(), ": '", key, "': ", error.what());
    }
  }
  return patterns;
}

/// A list of strings; empty where there is none.
std::vector<std::string> names_from(const JsonView& config, const char* key) {
  std::vector<std::string> names;
  if (const auto list = config.find(key))
    for (const JsonView& name : list->elements()) names.emplace_back(name.string());
  return names;
}

/// The entries of target_modules, unless they are an expression, or exclude_modules may take some of them
/// back.
std::vector<std::string> targets_from(const JsonView& config) {
  for (const char* key : {"target_modules", "exclude_modules"})
    if (const auto value = config.find(key); value && !value->value().is_string()) names_from(config, key);
  const auto targets = config.find("target_modules"), excluded = config.find("exclude_modules");
  if (!targets || targets->value().is_string() || (excluded && is_set(excluded->value()))) return {};
  return names_from(config, "target_modules");
}

/// "0.18.1" and later forms such as "0.19.0.dev0@UNKNOWN".
StackLayout layout_of_version(const JsonView& version) {
  const std::string_view text = version.string();
  const char* const end = text.data() + text.size();
  int major = 0, minor = 0;
  const auto [dot, wrong] = std::from_chars(text.data(), end, major);
  if (wrong != std::errc() || dot == end || *dot != '.' ||
      std::from_chars(dot + 1, end, minor).ec != std::errc() || major < 0 || minor < 0)
    version.refuse("a version such as \"0.19.0\"");
  return major > 0 || minor >= 19 ? StackLayout::current : StackLayout::peft_0_18;
}

void check_initialisation(const JsonView& config) {
  const auto initial = config.find("init_lora_weights");
  if (!initial || initial->value().is_boolean()) return;
  if (initial->value().is_string())
    for (const char* kept : {"gaussian", "orthogonal", "eva"})
      if (initial->string() == kept) return;
  initial->refuse(
      "true, false, \"gaussian\", \"orthogonal\" or \"eva\" (others, such as PiSSA, OLoRA and CorDA, change "
      "the "
      "base weights, so the adapter does not belong to the model as published; PEFT can save it converted)");
}

void read_adapter_config(const JsonView& config, PeftConfig& peft) {
  const JsonView type = config.at("peft_type");
  if (type.string() != "LORA") type.refuse("\"LORA\"");
  refuse_other_fields(config);
  if (const auto bias = config.find("bias"); bias && bias->string() != "none")
    bias->refuse("\"none\" (trained biases are not supported)");
  check_initialisation(config);

  if (const auto rank = config.find("r")) peft.rank = rank_from(*rank);
  if (const auto alpha = config.find("lora_alpha")) peft.alpha = alpha_from(*alpha);
  if (const auto dropout = config.find("lora_dropout")) peft.dropout = dropout_from(*dropout);
  if (const auto stabilised = config.find("use_rslora")) peft.rank_stabilised = stabilised->boolean();
  peft.rank_pattern = patterns_from(config, "rank_pattern", rank_from);
  peft.alpha_pattern = patterns_from(config, "alpha_pattern", alpha_from);
  if (const auto base = config.find("base_model_name_or_path")) peft.base_model_name_or_path = base->string();
  peft.target_modules = targets_from(config);
  peft.target_parameters = names_from(config, "target_parameters");
  peft.modules_to_save = names_from(config, "modules_to_save");
  if (const auto version = config.find("peft_version")) peft.layout = layout_of_version(*version);
}

void read_automodel_config(const JsonView& config, PeftConfig& peft) {
  if (const auto dora = config.find("use_dora"); dora && dora->boolean())
    dora->refuse("false (DoRA's magnitudes are not supported)");
  if (const auto scaling = config.find("moe_rank_scaling")) peft.moe_rank_scaling = scaling->boolean();
  if (const auto dropout = config.find("dropout")) peft.dropout = dropout_from(*dropout);
  peft.dropout_position = DropoutPosition::post;
  if (const auto position = config.find("dropout_position")) {
    if (position->string() != "pre" && position->string() != "post") position->refuse("\"pre\" or \"post\"");
    if (position->string() == "pre") peft.dropout_position = DropoutPosition::pre;
  }
  const auto initial = config.find("lora_A_init");
  peft.initialisation =
      !initial || initial->string() == "xavier" ? LoraInitialisation::xavier : LoraInitialisation::kaiming;
  if (!peft.layout) peft.layout = StackLayout::peft_0_18;
}

template <class Read>
void read_object(const fs::path& path, PeftConfig& peft, Read&& read) {
  const Json document = read_json_file(path, peft_config_limits);
  const JsonView view(document, path.string());
  if (!document.is_object()) view.refuse("an object");
  read(view, peft);
}
}  // namespace

PeftConfig read_peft_config(const fs::path& directory) {
  PeftConfig peft;
  read_object(directory / peft_config_name, peft, read_adapter_config);
  std::error_code error;
  if (fs::exists(directory / automodel_config_name, error))
    read_object(directory / automodel_config_name, peft, read_automodel_config);
  return peft;
}

}  // namespace nemocube
