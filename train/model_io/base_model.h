#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "data/hf/model_record.h"
#include "parallel/comm/communicator.h"

/// The model that an adapter belongs to, or that has the frozen weights which a checkpoint leaves out.
/// Adapter and checkpoint hold a ModelRecord, so that a changed model in the same place, or another one that
/// a user names, is noticed.
namespace nemocube {

/// Beside adapter_config.json: the ModelRecord of the model that the adapter was trained on. PEFT does not
/// read the file.
constexpr const char* base_model_file = "base_model.json";

/// record_of_model(), with sums of all bytes where the model is in a checkpoint that has such sums. Rank 0
/// reads; all `ranks` call together and get the result. Null: one rank.
ModelRecord record_of_base(const std::filesystem::path& model, Communicator* ranks = nullptr);

/// The text of base_model.json.
std::string base_model_text(const ModelRecord& record);
/// The record in an adapter's directory; nothing without such a file, as in directories of other programs.
/// Throws Error naming the file where it is damaged.
std::optional<ModelRecord> read_base_record(const std::filesystem::path& adapter);

/// Throws Error where the adapter was trained on another model than `model`, as far as sizes and sums tell;
/// warns where only the name is another. Rank 0 reads; all ranks of `ranks` call together, and all throw.
void want_base_of_adapter(const std::filesystem::path& adapter, const std::filesystem::path& model,
                          Communicator* ranks = nullptr);

/// The fault of the model to which a directory leaves its frozen weights (data/hf/frozen_weights.h): it
/// differs from the model of the run that wrote the directory. Empty without a fault, and for a directory
/// that leaves no weights or has no record.
std::string fault_of_frozen_base(const std::filesystem::path& directory);

/// Throws Error where a checkpoint cannot be resumed on `model`: its adapters belong to
/// another model, or weights that it leaves elsewhere have changed. `model`: empty where
/// its weights are fresh. `ranks`: as above.
void want_recorded_base(const std::filesystem::path& checkpoint, const std::filesystem::path& model,
                        Communicator* ranks = nullptr);

}  // namespace nemocube
