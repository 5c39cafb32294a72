#include "data/peft/write_peft.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "data/files/staging_directory.h"
#include "data/json/json.h"
#include "data/peft/peft_config.h"
#include "data/peft/peft_names.h"
#include "data/peft/stack_layout.h"
#include "data/safetensors/writer.h"
#include "parallel/comm/together.h"

namespace nemocube {
namespace {
namespace fs = std::filesystem;

struct HeldAdapter {
  std::string path;  // of the module, as classes name it
  LoraModule module;
  Tensor a, b;
  bool is_stack() const { return a.ndim() == 3; }
};
using HeldAdapters = std::map<std::string, HeldAdapter>;  // by canonical module name

void check_adapter(const std::string& name, const HeldAdapter& adapter) {
  const Tensor &a = adapter.a, &b = adapter.b;
  expect(a.defined() && b.defined(), "adapter '", name, "' lacks lora_A or lora_B");
  const bool fits = (a.ndim() == 2 || a.ndim() == 3) && b.ndim() == a.ndim() &&
                    a.dim(-2) == adapter.module.rank && b.dim(-1) == adapter.module.rank &&
                    (a.ndim() == 2 || a.dim(0) == b.dim(0));
  expect(fits, "adapter '", name, "' of rank ", adapter.module.rank, ": lora_A ", a.shape(), ", lora_B ",
         b.shape());
}

HeldAdapters held_adapters(std::span<const NamedTensor> tensors, const LoraAdapters& adapters,
                           const ModelNames& names) {
  HeldAdapters held;
  for (const auto& [id, module] : adapters.modules) {
    const std::string name = names.text(id);
    expect(module.rank_stabilised == adapters.modules.begin()->second.rank_stabilised, "adapter '", name,
           "': rsLoRA for some modules only, which adapter_config.json cannot say");
    held[name].module = module;
    held[name].path = names.table().class_name(name);
  }
  for (const NamedTensor& tensor : tensors) {
    const auto key = parse_peft_key(tensor.name);
    const auto found = key ? held.find(key->path) : held.end();
    expect(found != held.end(), "tensor '", tensor.name, "' is of no adapter");
    Tensor& factor = key->factor == 'A' ? found->second.a : found->second.b;
    expect(!factor.defined() && !tensor.shard, "tensor '", tensor.name, "' given twice, or a part of it");
    factor = tensor.value;
  }
  for (const auto& [name, adapter] : held) check_adapter(name, adapter);
  return held;
}

// adapter_config.json

/// The most frequent value; of several the smallest.
template <class T>
T usual(const std::map<T, int>& counts) {
  return std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; })->first;
}

Json json_number(double value) {
  constexpr double most_exact = 0x1p53;
  if (value == std::floor(value) && std::abs(value) < most_exact) return static_cast<std::int64_t>(value);
  return value;
}

void add_ranks(std::map<std::string, Json>& config, const HeldAdapters& adapters, ExpertForm form) {
  std::map<std::int64_t, int> ranks;
  std::map<double, int> alphas;
  for (const auto& [name, adapter] : adapters) {
    ++ranks[adapter.module.rank];
    ++alphas[adapter.module.alpha];
  }
  const std::int64_t rank = usual(ranks);
  const double alpha = usual(alphas);
  Json rank_pattern = Json::object(), alpha_pattern = Json::object();
  for (const auto& [name, adapter] : adapters) {
    const bool split = adapter.is_stack() && form == ExpertForm::per_expert;
    for (const std::string& path :
         split ? expert_paths(adapter.path, "[0-9]+") : std::vector<std::string>{adapter.path}) {
      if (adapter.module.rank != rank) rank_pattern[path] = adapter.module.rank;
      if (adapter.module.alpha != alpha) alpha_pattern[path] = json_number(adapter.module.alpha);
    }
  }
  config["r"] = rank;
  config["lora_alpha"] = json_number(alpha);
  config["rank_pattern"] = std::move(rank_pattern);
  config["alpha_pattern"] = std::move(alpha_pattern);
}

void add_targets(std::map<std::string, Json>& config, const HeldAdapters& adapters, ExpertForm form) {
  std::set<std::string> modules, parameters;
  for (const auto& [name, adapter] : adapters) {
    if (!adapter.is_stack())
      modules.insert(adapter.path);
    else if (form != ExpertForm::per_expert)
      parameters.insert(adapter.path);
    else
      for (std::int64_t e = 0; e < adapter.a.dim(0); ++e)
        for (std::string& path : expert_paths(adapter.path, std::to_string(e)))
          modules.insert(std::move(path));
  }
  config["target_modules"] = modules.empty() ? Json::array() : Json(modules);
  config["target_parameters"] = parameters.empty() ? Json() : Json(parameters);
}

/// Whether PEFT can apply the adapters' dropout, which its stacks of experts refuse.
bool says_dropout(const LoraAdapters& adapters, const Json& target_parameters) {
  return adapters.dropout_position == DropoutPosition::pre && target_parameters.is_null();
}

/// The fields are those of PEFT 0.18, which later releases have as well.
std::string config_text(const LoraAdapters& adapters, const HeldAdapters& held,
                        const PeftWriteOptions& options) {
  std::map<std::string, Json> config;  // PEFT sorts the keys
  for (const char* unused :
       {"alora_invocation_tokens", "arrow_config", "auto_mapping", "corda_config", "eva_config",
        "exclude_modules", "layer_replication", "layers_pattern", "layers_to_transform", "megatron_config",
        "modules_to_save", "trainable_token_indices"})
    config[unused] = nullptr;
  for (const char* off : {"ensure_weight_tying", "fan_in_fan_out", "lora_bias", "use_dora", "use_qalora"})
    config[off] = false;
  config["base_model_name_or_path"] =
      options.base_model_name_or_path ? Json(*options.base_model_name_or_path) : Json();
  config["revision"] = options.revision ? Json(*options.revision) : Json();
  config["bias"] = "none";
  config["inference_mode"] = true;
  config["init_lora_weights"] = true;
  config["loftq_config"] = Json::object();
  config["megatron_core"] = "megatron.core";
  config["peft_type"] = "LORA";
  config["peft_version"] = options.experts == ExpertForm::stacked_peft_0_18 ? "0.18.1" : "0.21.2";
  config["qalora_group_size"] = 16;
  config["task_type"] = "CAUSAL_LM";
  config["use_rslora"] = held.begin()->second.module.rank_stabilised;
  add_ranks(config, held, options.experts);
  add_targets(config, held, options.experts);
  config["lora_dropout"] = says_dropout(adapters, config["target_parameters"]) ? adapters.dropout : 0.0;
  Json document = Json::object();
  for (auto& [key, value] : config) document[key] = std::move(value);
  return dump_json(document) + "\n";
}

// adapter_model.safetensors

class SourceList {
 public:
  explicit SourceList(bool writes) : writes_(writes) {}
  void add(const std::string& path, const Tensor& a, const Tensor& b) {
    add(peft_key(path, 'A'), a);
    add(peft_key(path, 'B'), b);
  }
  std::vector<TensorSource> take() { return std::move(sources_); }

 private:
  void add(const std::string& key, const Tensor& value) {
    TensorSource source = source_of(key, value, value.dtype());
    if (!writes_) source.pieces.clear();
    sources_.push_back(std::move(source));
  }
  bool writes_;
  std::vector<TensorSource> sources_;
};

/// The path of a stack in a file: that of the module with the experts, which PEFT wraps once for each of its
/// stacks.
std::string stack_path(const std::string& name, const HeldAdapters& adapters) {
  const std::size_t dot = name.rfind('.');
  const std::string module = name.substr(0, dot), stack = name.substr(dot + 1);
  expect(std::ranges::find(expert_stacks, stack) != expert_stacks.end(), "stack of experts '", name, "'");
  const bool wrapped = stack != outer_stack && adapters.contains(cat(module, '.', outer_stack));
  const std::string& path = adapters.at(name).path;
  return cat(path.substr(0, path.rfind('.')), wrapped ? wrapped_stack : "");
}

/// The pairs of one expert: layers that are parts of one weight share A.
void add_expert(SourceList& list, const std::vector<std::string>& paths, const Tensor& a, const Tensor& b) {
  const std::int64_t rows = b.dim(0) / std::ssize(paths);
  for (std::size_t i = 0; i < paths.size(); ++i)
    list.add(paths[i], a, b.narrow(0, static_cast<std::int64_t>(i) * rows, rows));
}

std::vector<TensorSource> sources_of(const HeldAdapters& adapters, ExpertForm form, bool writes) {
  SourceList list(writes);
  for (const auto& [name, adapter] : adapters) {
    const Tensor &a = adapter.a, &b = adapter.b;
    if (!adapter.is_stack())
      list.add(adapter.path, a, b);
    else if (form == ExpertForm::stacked)
      list.add(stack_path(name, adapters), join_rows(a), join_columns(b));
    else if (form == ExpertForm::stacked_peft_0_18)  // (B A)^T = A^T B^T
      list.add(stack_path(name, adapters), join_rows(transpose_each(b)), join_columns(transpose_each(a)));
    else
      for (std::int64_t e = 0; e < a.dim(0); ++e)
        add_expert(list, expert_paths(adapter.path, std::to_string(e)), a.select(e), b.select(e));
  }
  return list.take();
}
}  // namespace

FileSums write_peft_directory(const fs::path& directory, std::span<const NamedTensor> tensors,
                              const LoraAdapters& adapters, const PeftWriteOptions& options,
                              Communicator* group) {
  expect(!adapters.modules.empty(), directory.string(), ": no adapters to write");
  const HeldAdapters held = held_adapters(tensors, adapters, options.names);
  std::map<std::string, std::string> texts = options.other_files;
  texts[peft_config_name] = config_text(adapters, held, options);
  std::optional<StagingDirectory> staging;  // on rank 0
  const fs::path place = text_of_rank_0(group, [&] {
    std::error_code error;
    fs::path target = fs::absolute(directory, error).lexically_normal();
    if (!target.has_filename()) target = target.parent_path();
    const bool taken = fs::exists(target, error) && !fs::is_empty(target, error);
    require(!taken, directory.string(),
            ": exists and is not empty; want a new directory to save an adapter in");
    staging.emplace(target);
    return staging->path().string();
  });
  FileSums sums;
  sums[peft_tensors_name] = write_safetensors(place / peft_tensors_name,
                                              sources_of(held, options.experts, !group || group->rank() == 0),
                                              pytorch_metadata, group);
  for (const auto& [name, text] : texts) sums[name] = write_file_in(place, name, text, group);
  on_rank_0(group, [&] { staging->publish(); });
  return sums;
}

}  // namespace nemocube
