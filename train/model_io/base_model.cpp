#include "train/model_io/base_model.h"

#include <nlohmann/json.hpp>

#include "core/log.h"
#include "data/hf/frozen_weights.h"
#include "parallel/comm/together.h"
#include "train/checkpoint/checksums.h"
#include "train/checkpoint/intact.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

ModelRecord record_here(const fs::path& model) {
  const auto checkpoint = checkpoint_of_model(fs::absolute(model).lexically_normal());
  const auto sums = checkpoint ? read_checksums(*checkpoint) : std::nullopt;
  return record_of_model(model, sums ? sums_of_model(*sums) : FileSums());
}

void want_base_here(const fs::path& adapter, const fs::path& model) {
  const std::optional<ModelRecord> written = read_base_record(adapter);
  if (!written) return;
  const ModelRecord found = record_here(model);
  const std::string file = (adapter / base_model_file).string(),
                    difference = first_difference(*written, found);
  require(difference.empty(), file, ": want the model that the adapter was trained on, ", written->label(),
          ", got ", found.label(), written->label() == found.label() ? ", which has changed since" : "", ": ",
          difference, ". A copy of the adapter without ", base_model_file,
          " is used with any model that it fits");
  if (written->label() != found.label())
    log_warning(file, ": the adapter was trained on ", written->label(), ", and is used with ", found.label(),
                ", whose files have the same sizes and sums");
}

}  // namespace

ModelRecord record_of_base(const fs::path& model, Communicator* ranks) {
  const std::string text = text_of_rank_0(ranks, [&] { return dump_json(to_json(record_here(model)), -1); });
  const Json json = parse_json(text, "the record of the base model");
  return model_record_from(JsonView(json, "the record of the base model"));
}

std::string base_model_text(const ModelRecord& record) { return dump_json(to_json(record)) + "\n"; }

std::optional<ModelRecord> read_base_record(const fs::path& adapter) {
  const fs::path file = adapter / base_model_file;
  if (std::error_code none; !fs::exists(file, none)) return std::nullopt;
  const Json json = read_json_file(file);
  return model_record_from(JsonView(json, file.string()));
}

void want_base_of_adapter(const fs::path& adapter, const fs::path& model, Communicator* ranks) {
  on_rank_0(ranks, [&] { want_base_here(adapter, model); });
}

std::string fault_of_frozen_base(const fs::path& directory) {
  const std::optional<FrozenWeights> frozen = read_frozen_weights(directory);
  if (!frozen || !frozen->record) return "";
  const std::string difference = first_difference(*frozen->record, record_here(frozen->base));
  if (difference.empty()) return "";
  return cat(
      (directory / FrozenWeights::file_name).string(), ": ", frozen->base.string(),
      ", which has the weights that were not trained, is another model than the run had: ", difference);
}

void want_recorded_base(const fs::path& checkpoint, const fs::path& model, Communicator* ranks) {
  on_rank_0(ranks, [&] {
    const fs::path directory = checkpoint / "model";
    if (!model.empty()) want_base_here(directory, model);
    const std::string fault = fault_of_frozen_base(directory);
    require(fault.empty(), fault);
  });
}

}  // namespace nemocube
