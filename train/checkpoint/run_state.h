#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "data/json/atomic_file.h"
#include "data/loader/loader.h"
#include "data/text/moment.h"
#include "parallel/data_parallel/flat_unit.h"
#include "parallel/grid/grid_sizes.h"
#include "parallel/parallel_model/pipeline_plan.h"
#include "train/datasets/row_inputs.h"
#include "train/schedule/early_stopping.h"

namespace nemocube {

/// The unit of the place in the data: rows of this kind, in batches of this size.
struct BatchShape {
  std::int64_t global_batch_size = 0;
  std::int64_t seq_length = 0;            ///< to which rows are cut; 0: not cut
  std::int64_t packed_sequence_size = 0;  ///< 0: rows are not packed
  friend bool operator==(const BatchShape&, const BatchShape&) = default;
};

/// Throws Error that names the first difference, and the way out of it, unless a run of batches `now` can go
/// on at a place that counts in batches `written`.
void want_same_batches(const BatchShape& written, const BatchShape& now);

/// Everything a run needs to go on, besides tensors. Random draws depend on seeds and counters alone.
struct RunState {
  std::int64_t step = 0;             ///< steps done
  std::int64_t scheduler_steps = 0;  ///< progress of the learning-rate schedule: skipped steps do not count
  /// The length of the run by which absent keys of lr_scheduler are filled (make_schedule()). 0: the length
  /// of this run; so in checkpoints of older programs, and without the section.
  std::int64_t schedule_length = 0;
  std::int64_t optimizer_steps = 0;
  std::int64_t samples = 0;  ///< consumed, skipped steps included
  std::int64_t skipped_steps = 0;
  std::int64_t nonfinite_in_a_row = 0;
  LoaderState loader;                                ///< after the last step, in the epoch of that step
  std::optional<BatchShape> batch;                   ///< absent in checkpoints of 0.1.0
  std::optional<EarlyStoppingState> early_stopping;  ///< absent before the first validation that counts
  RowInputs rows;  ///< the inputs of the training data's rows; empty in older checkpoints
  std::map<std::string, RowInputs> validation_rows;  ///< the same of validation sets, by name
  std::optional<Moment> moment;  ///< shown by chat templates of the run; absent where they show none
};

/// Where a checkpoint comes from.
struct Origin {
  std::string program;      ///< version() of the program that wrote the checkpoint
  std::int64_t serial = 0;  ///< counts the checkpoints of a directory in the order they were written, from 1
  std::string parent;       ///< the checkpoint that the run saved or loaded before this one; empty: none
  std::int64_t parent_steps = 0;  ///< steps done at the parent
};

/// How the ranks of a run divide model and optimizer.
struct RankLayout {
  GridSizes grid;  ///< kv_replicas and state_replicas are 1: they follow from the model
  ZeroLevel zero = ZeroLevel::none;
  std::string stages;  ///< describe_stages()
  std::int64_t ranks() const { return grid.ranks(); }
  friend bool operator==(const RankLayout&, const RankLayout&) = default;
};
/// "1 rank", "4 ranks (dp_shard 2, dp_replicate 2, ZeRO level 3)", "4 ranks (pp 2, ep 2,
/// dp_shard 2, dp_replicate 1, ZeRO level 3; STAGES)", "4 ranks from rank 2 (..)"; tp, cp,
/// pp, expt_tp and ep are named only above 1.
std::string to_string(const RankLayout& layout);
/// "rank 0: blocks 0 to 3; rank 1: blocks 4 to 7": the stages in their order, by pipeline rank. Empty where
/// there is one stage.
std::string describe_stages(const PipelinePlan& pipeline);

/// Writes the file state.json of a checkpoint. Without several ranks it does not name the layout. Sizes of
/// the grid that the layout of an older program does not name are 1.
FileSum write_run_state(const std::filesystem::path& file, const RunState& state, const Origin& origin,
                        const RankLayout& layout = {});
/// Throws Error naming the file and the field when a field is missing, is not an integer or has an impossible
/// value.
RunState read_run_state(const std::filesystem::path& file);
/// The origin of a checkpoint; nothing for older programs, which wrote
/// none. Throws Error like read_run_state().
std::optional<Origin> read_origin(const std::filesystem::path& file);
/// Throws Error like read_run_state().
RankLayout read_rank_layout(const std::filesystem::path& file);

}  // namespace nemocube
