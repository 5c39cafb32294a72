#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/world.h"
#include "train/checkpoint/checkpoint_folder.h"
#include "train/checkpoint/run_state.h"
#include "train/checkpoint/snapshot.h"
#include "train/model_io/model_io.h"
#include "train/optimizer/optimizer.h"
#include "train/recipe/recipe.h"

/// Checkpoints of a run:
///     <checkpoint_dir>/
///       LATEST, LOWEST_VAL                symbolic links to the newest and the best checkpoint
///       epoch_<E>_step_<S>/               after step S, which belongs to epoch E
///         model/                          config.json, weights, tokenizer: a usable Hugging Face directory
///         optim/                          moments, and the f32 masters of parameters stored in bf16
///                                         (train/checkpoint/optimizer_files.h)
///         state.json                      RunState, Origin, RankLayout
///         losses.json                     loss of each validation set, added after validation
///         config.yaml                     the recipe as resolved
///         checksums.json                  length and CRC-32C of each of these files
///       abandoned/                        checkpoints and logs of branches that a later run has left
/// A checkpoint is written under a temporary name and renamed when every byte is durable, so a directory with
/// the final name is always complete.
///
/// On several ranks each one writes and reads its own tensors, straight from and into its memory,
/// so all ranks must see checkpoint_dir (train/checkpoint/shared_directory.h). All ranks check equal
/// parts of the files for damage. Rank 0 does everything else. All ranks call each function together,
/// and with the same arguments unless a function says otherwise; all get the same result or all
/// throw, with the text of the rank that failed (parallel/comm/together.h). Ranks wait for the
/// slowest, which may take long: see StorageTime.
namespace nemocube {

class Checkpoints {
 public:
  /// `world`: the ranks of the run; null for one rank. Does not communicate.
  Checkpoints(const CheckpointSection& section, std::string resolved_recipe, World* world = nullptr,
              const RankLayout& layout = {});
  /// Waits for saves that have begun. While an exception unwinds the stack it waits, too, for save threads of
  /// other ranks need this rank's, but not longer than ranks wait for messages.
  ~Checkpoints();

  /// Writes a checkpoint, moves LATEST to it and prunes old checkpoints. The first save() after a load()
  /// moves the checkpoints of steps after the loaded one to abandoned/: these belong to a branch that this
  /// run has left. Returns the directory of the new checkpoint.
  ///
  /// With the key is_async the tensors that this rank writes are copied to memory of the host, and a thread
  /// writes the copy while training goes on, beside the collectives of training (World::background_group()).
  /// A save() then first waits until the save before it is done. Checkpoints are written one at a time, in
  /// the order of the calls, as without the key.
  std::filesystem::path save(const LoadedModel& model, const Optimizer& optimizer, const RunState& state);

  /// Writes the validation losses of a saved step, by name of the set, into the checkpoint. Then points
  /// LOWEST_VAL to the checkpoint with the lowest finite loss of the set best_metric_key; of equal losses the
  /// earliest wins. With the key is_async the thread does this, after the save that has begun.
  void note_losses(const std::filesystem::path& checkpoint, const std::map<std::string, double>& losses);

  /// A checkpoint that is complete under its name.
  struct Published {
    std::filesystem::path path;
    std::int64_t steps = 0;  ///< done
    std::int64_t bytes = 0;  ///< of all files; 0 on other ranks than rank 0
    double seconds = 0;      ///< that writing took
  };
  /// The checkpoints of save() that this function has not returned before, in their order, on this rank
  /// alone. Throws the Error of a save() that has failed.
  std::vector<Published> take_published();
  /// Waits until all begun work is done. Throws the Error of work that failed. Does not communicate.
  void finish();

  /// CheckpointFolder::recover(), if `locked`: whether this rank holds the lock of the directory
  /// (train/run/run_lock.h). Rank 0 counts.
  void recover(bool locked = true, const LoggedLosses& logged = {}) const;

  /// The checkpoint to resume from: named by the key restore_from (LATEST,
  /// LOWEST_VAL, a name in checkpoint_dir, or a path), else
  /// CheckpointFolder::newest(). Throws Error when restore_from does not exist.
  std::optional<std::filesystem::path> find() const;

  /// RunState::moment of a checkpoint, on every rank; nothing where the checkpoint has none or cannot be
  /// read, which load() reports.
  std::optional<Moment> moment_of(const std::filesystem::path& checkpoint) const;

  /// Reads a checkpoint of any layout and dtype into a model and optimizer of the same kind
  /// (restore_tensors()); in the same dtype every bit is as it was at save(). Of several ranks each reads
  /// Parameter::own; call DataParallel::spread_values() afterwards. Rank 0 logs the layout of the checkpoint
  /// where it differs. The keys load_optim, load_scheduler and finetune leave out their parts, in the
  /// returned state as well. Errors name the file and the tensor or field in it that is damaged, missing,
  /// unexpected or of another shape. For a damaged checkpoint they also name the newest intact one before it.
  RunState load(const std::filesystem::path& checkpoint, Stack& model, Optimizer& optimizer);

  /// Removes checkpoints beyond max_recent_checkpoints. save() does so too; a run that resumes calls prune()
  /// for a save that was killed before its pruning. Does nothing where the checkpoint loaded last lies
  /// elsewhere or has later ones beside it.
  void prune() const;

  /// How many checkpoints the next save() moves to abandoned/. Only for rank 0.
  std::size_t to_be_abandoned() const;
  /// Origin::serial of the next checkpoint. Only for rank 0.
  std::int64_t next_serial() const { return folder_.next_serial(parent_.serial); }

 private:
  struct Background;
  void write(const Snapshot& snapshot, const std::filesystem::path& target, Communicator* ranks);
  void do_or_queue(std::function<void(Communicator* ranks)> work);
  void prune(Communicator* ranks) const;
  std::filesystem::path find_here() const;
  void report_layout(const std::filesystem::path& checkpoint) const;
  CheckpointSection section_;
  CheckpointFolder folder_;
  std::string resolved_recipe_;
  World* world_;
  Communicator* ranks_;  // null: one rank
  RankLayout layout_;
  struct Parent {
    std::string name;
    std::int64_t steps = 0, serial = 0;
  } parent_;  // the checkpoint loaded or saved last
  std::mutex published_mutex_;
  std::vector<Published> published_;
  std::unique_ptr<Background>
      background_;  // null: not needed yet. Last, because its thread uses the other members
};

/// Bytes of a checkpoint of the whole model, or of all adapters, with moments and masters, at most.
std::int64_t checkpoint_bytes(const ModelSetup& setup, DType dtype);

}  // namespace nemocube
