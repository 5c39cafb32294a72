#pragma once
#include <filesystem>
#include <optional>

#include "data/files/on_bytes.h"
#include "data/json/atomic_file.h"
#include "parallel/comm/communicator.h"
#include "train/checkpoint/checkpoint_folder.h"

/// Whether a checkpoint has the bytes that were written.
namespace nemocube {

/// The sums of all files of a checkpoint. Returns nothing for a checkpoint of an older program
/// without sums. Throws Error where checksums.json is missing or damaged, and where the
/// checkpoint holds a FIFO, socket or device.
std::optional<FileSums> want_checksums(const std::filesystem::path& checkpoint);

/// Throws Error where a file of the checkpoint is damaged: names the first such file, its damage, and the
/// newest intact checkpoint before it, if `folder` has one. All ranks of `ranks` call together, and each
/// reads an equal part of the files (find_damage()); null: one rank. All ranks throw the same text.
void check_intact(const CheckpointFolder& folder, const std::filesystem::path& checkpoint,
                  Communicator* ranks = nullptr);

/// The checkpoint whose directory `model` this is; nothing for a model outside of checkpoints.
std::optional<std::filesystem::path> checkpoint_of_model(const std::filesystem::path& model);
/// The part of a checkpoint's sums for its directory `model`, by file name there.
FileSums sums_of_model(const FileSums& of_checkpoint);

/// check_intact() for the files of a checkpoint's directory `model`; the message counts all damaged ones.
/// Does nothing for a model that is not in a checkpoint.
void check_model_of_checkpoint(const std::filesystem::path& model, const OnBytes& on_bytes = {});

}  // namespace nemocube
