#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/json/json.h"
#include "model/config.h"

namespace nemocube {

/// A model of several parts that holds one of a family as its language model.
struct Wrapper {
  std::string_view model_type;  ///< of the whole
  bool tied_by_default;         ///< what the whole's tie_word_embeddings, which counts, is where absent
  bool caps_logits = true;      ///< whether the whole's class applies the language model's logit_softcap
};

/// All that the program knows of a family of models beside the kinds of its blocks, in one place: its folder
/// in data/hf/families. docs/new_family.md walks through one.
struct Family {
  std::string_view model_type;  ///< in config.json
  /// Whether a class in `architectures` of config.json is of the family, where there is no model_type.
  bool (*has_class)(std::string_view architecture);
  const NameTable* names;
  /// Throws Error for models that look like those of the family and are none.
  void (*refuse_relatives)(const JsonView& object) = [](const JsonView&) {};
  /// Fills the config from config.json, but for what every family has (data/hf/hf_config.h). Throws Error
  /// naming the file, the key, the accepted values and the given value.
  void (*read)(ModelConfig& config, const JsonView& object);
  /// Sets the keys of config.json that read() reads, in the order in which they are written.
  void (*write)(const ModelConfig& config, Json& to);
  /// Floating-point operations of one training step over so many sequences, as NeMo AutoModel's benchmark
  /// counts them, to compare with its figures.
  double (*automodel_step_flops)(const ModelSetup& setup, std::int64_t sequences, std::int64_t length);
  /// Models of several parts whose own tie_word_embeddings decides about the head. In others that of the
  /// language model's config does.
  std::span<const Wrapper> wrappers = {};
  /// Names of the family's own plan of tensor parallelism in recipes (distributed.tp_plan). The first is the
  /// one that messages give; one that several families have means the plan of the model's family.
  std::span<const std::string_view> tp_plans = {};
};

/// Whether a class of Hugging Face is the language model or the body of this name: "<name>ForCausalLM" or
/// "<name>Model".
bool is_class_named(std::string_view architecture, std::string_view name);

std::span<const Family* const> families();
/// The family that config.json names by model_type, or without one by `architectures`; null where it is none
/// of these.
const Family* find_family(const JsonView& config);
/// The family of a config, which is that of its names.
const Family& family_of(const ModelConfig& config);
/// For messages: the model types, each in quotes.
std::string model_types();
/// Family::tp_plans of all families, each name once.
std::vector<std::string> tp_plan_names();

}  // namespace nemocube
