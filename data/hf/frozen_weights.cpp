#include "data/hf/frozen_weights.h"

#include <nlohmann/json.hpp>

#include "data/json/json.h"
#include "data/json/json_ref.h"

namespace nemocube {

std::optional<FrozenWeights> read_frozen_weights(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / FrozenWeights::file_name;
  std::error_code none;
  if (!std::filesystem::exists(path, none)) return std::nullopt;
  const std::string file = path.string();
  const Json document = read_json_file(path);
  const JsonRef root(document, file, "");
  FrozenWeights frozen{root.at("base_model_name_or_path").string(), {}, {}};
  if (!frozen.base.is_absolute())
    root.at("base_model_name_or_path").fail("want an absolute path, got ", frozen.base.string());
  for (const JsonRef& name : root.at("tensors").elements()) frozen.tensors.emplace(name.string());
  const JsonView view(document, file);
  if (const auto record = view.find("base")) frozen.record = model_record_from(*record);
  return frozen;
}

std::string to_json_text(const FrozenWeights& frozen) {
  Json json{{"base_model_name_or_path", frozen.base.string()}, {"tensors", frozen.tensors}};
  if (frozen.record) json["base"] = to_json(*frozen.record);
  return dump_json(json) + "\n";
}

}  // namespace nemocube
