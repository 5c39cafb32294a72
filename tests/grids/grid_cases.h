#pragma once
#include <string>
#include <vector>

#include "parallel/parallel_model/parallel_plan.h"

/// Process grids for tests, and the small model that is divided on them.
namespace nemocube::testing {

struct GridCase {
  GridSizes grid;
  bool sequence_parallel = false;
  ZeroLevel level = ZeroLevel::parameters;
  DispatcherKind dispatcher = DispatcherKind::alltoall;
  ContextAttention attention = ContextAttention::ring;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::int64_t chunks = 1;     ///< stages of each pipeline rank
  bool packed = true;          ///< several documents in a row of a batch
  bool checkpointing = false;  ///< of activations
  bool whole_head = false;     ///< lm_head is not cut: cross-entropy `off`
  bool always = false;         ///< among the cases that every test run tries
  bool cuda = false;           ///< among those that `make test-cuda` tries on the software GPU
};
std::string name_of(const GridCase& grid);

/// A model of eight blocks that every case divides. Its two key-value heads and groups are fewer than four tp
/// ranks.
ModelConfig grid_model();
/// The same with sizes of their own in blocks of every kind, which every case divides as well.
ModelConfig pruned_grid_model();
/// A small model of each family beside the first: four layers, which are eight blocks, with names of files of
/// the family's own. The name begins with the model_type.
struct FamilyModel {
  std::string name;
  ModelConfig config;
  DiffusionTraining diffusion = {};  ///< how a model that denoises is trained; others: the default

  /// Whether the model can be trained on the grid. Training that denoises is refused with cp > 1.
  bool fits(const GridCase& grid) const;
};
const std::vector<FamilyModel>& family_models();
/// Those of them that a grid, case `number` of a run, tries: that which the environment variable
/// NEMOCUBE_FAMILY names, all with `all`, else one after another. Models that do not fit are left out.
std::vector<FamilyModel> family_models_of(const GridCase& grid, std::size_t number, bool all);
/// Lengths of sequences for texts of these lengths: with block diffusion each one twice, for both halves.
std::vector<std::int64_t> lengths_for(const DiffusionTraining& diffusion,
                                      const std::vector<std::int64_t>& lengths);
/// The case for a model without experts.
GridCase without_experts(GridCase c);
/// Gives mixers one norm, as many as `stages` equal stages of grid_model() keep together: three and two pairs
/// on up to two stages, three pairs on up to four, none on more.
void share_norms(ModelConfig& config, std::int64_t stages);
/// Low-rank adapters of every linear layer and stack of experts, with dropout.
LoraAdapters adapters_of_all(const ModelSetup& config, DropoutPosition position);
ParallelPlan plan_of(const GridCase& grid, const ModelSetup& config);

/// The cases for this number of ranks that `wish` asks for: "" those with `always`, "cuda" those with `cuda`,
/// "all" every one, any other text those whose names contain the text.
std::vector<GridCase> grid_cases(std::int64_t ranks, const std::string& wish);

}  // namespace nemocube::testing
