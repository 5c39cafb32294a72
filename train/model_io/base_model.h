#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "data/hf/model_record.h"
#include "parallel/comm/communicator.h"

/// The model that an adapter belongs to, and the one that a checkpoint without its frozen weights leaves
/// these to. What is written holds a ModelRecord, so that another model in the same place, or another one
/// that a user names, is noticed.
namespace nemocube {

/// Beside adapter_config.json: the ModelRecord of the model that the adapter was trained on. PEFT does not
/// read the file.
constexpr const char* base_model_file = "base_model.json";

/// record_of_model(), with the sums of all bytes where the model is that of a checkpoint which has them. Rank
/// 0 reads; all ranks of `ranks` call together and have the result. null: one rank.
ModelRecord record_of_base(const std::filesystem::path& model, Communicator* ranks = nullptr);

/// The text of base_model.json.
std::string base_model_text(const ModelRecord& record);
/// Of an adapter's directory; nothing where there is no such file, as in the directories of other programs.
/// Throws Error naming the file where it is damaged.
std::optional<ModelRecord> read_base_record(const std::filesystem::path& adapter);

/// Throws Error where the adapter was trained on another model than `model`, as far as sizes and sums tell;
/// warns where only the name is another. Rank 0 reads; all ranks of `ranks` call together, and all throw.
void want_base_of_adapter(const std::filesystem::path& adapter, const std::filesystem::path& model,
                          Communicator* ranks = nullptr);

/// What is wrong with the model to which a directory leaves its frozen weights (data/hf/frozen_weights.h):
/// that it is another one than the run had which wrote the directory. Empty where nothing is, also for a
/// directory that leaves none or has no record.
std::string fault_of_frozen_base(const std::filesystem::path& directory);

/// Throws Error where a checkpoint of a run on `model` cannot go on with it: its adapters belong to another
/// model, or the weights that it leaves elsewhere have changed. `model`: empty where its weights are fresh.
/// Ranks as above.
void want_recorded_base(const std::filesystem::path& checkpoint, const std::filesystem::path& model,
                        Communicator* ranks = nullptr);

}  // namespace nemocube
