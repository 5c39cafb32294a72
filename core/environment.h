#pragma once
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

/// Variables of the environment. One table names all variables that the program reads, and the variables of
/// its libraries that change results. The functions below are the only way to read one, so no variable
/// outside of the table can be read.
namespace nemocube {

/// Whether the ranks of a run may have different values of a variable; train/ranks/rank_settings.h compares
/// them.
enum class AcrossRanks {
  free,           ///< no number depends on it, or ranks agree on its consequences
  same_machines,  ///< changes how sums are rounded; machines of several kinds may want different values
  same            ///< ranks with different values train another model, or call different collectives
};

struct EnvironmentVariable {
  const char* name;
  AcrossRanks across_ranks;
};

inline constexpr auto environment_variables = std::to_array<EnvironmentVariable>({
    // These decide what a run is (train/recipe/environment.h).
    {"NEMOAUTOMODEL_PP_BLOCK_WEIGHTS", AcrossRanks::same},
    {"NEMOTRONH_EP_EXPERT_RESHARD_AFTER_FORWARD", AcrossRanks::same},
    {"NEMOTRONH_EP_USE_DEEPEP_DISPATCH", AcrossRanks::same},
    {"NEMOTRONH_TP_PARALLEL_CE", AcrossRanks::same},
    {"NEMOTRONH_TP_PARALLEL_CE_IMPL", AcrossRanks::same},
    // These may end a run or print something; they choose nothing.
    {"NEMOAUTOMODEL_PP_ALLOW_UNDERFILL", AcrossRanks::free},
    {"NEMOAUTOMODEL_PP_SKIP_OUTPUT_MERGE", AcrossRanks::free},
    {"NEMOAUTOMODEL_PP_STRICT_TOTAL_UNDERFILL", AcrossRanks::free},
    {"NEMOTRONH_EP_PHYSICAL_PARTITION", AcrossRanks::free},
    {"NEMOTRONH_EP_REQUIRE_DEEPEP", AcrossRanks::free},
    {"NEMOTRONH_EP_SYNC_INACTIVE_EXPERTS", AcrossRanks::free},
    // Threads. Matrix products are cut by their number, and then round otherwise (with oneDNN 2.6 in f32,
    // left operand transposed, 512 x 512 x 512: 1 and 2 threads give other bits), so weight gradients depend
    // on it. Without these variables the number follows from the machine and the bindings of its ranks.
    {"OMP_DYNAMIC", AcrossRanks::same_machines},
    {"OMP_MAX_ACTIVE_LEVELS", AcrossRanks::same_machines},  // 0: one thread everywhere
    {"OMP_NUM_THREADS", AcrossRanks::same_machines},
    {"OMP_THREAD_LIMIT", AcrossRanks::same_machines},
    {"GOMP_SPINCOUNT", AcrossRanks::free},
    {"OMP_WAIT_POLICY", AcrossRanks::free},
    // The C library's choice among its versions of exp, log and so on. Of oneDNN's own variables the effect
    // is compared, since each variable has two names.
    {"GLIBC_TUNABLES", AcrossRanks::same_machines},
    // In which precision cuBLAS multiplies f32.
    {"CUBLAS_EMULATE_SINGLE_PRECISION", AcrossRanks::same},
    {"CUBLAS_EMULATION_STRATEGY", AcrossRanks::same},
    {"NVIDIA_TF32_OVERRIDE", AcrossRanks::same},
    // Whether ranks that share a device use NCCL.
    {"NCCL_MULTI_RANK_GPU_ENABLE", AcrossRanks::same},
    // Which interfaces NCCL uses.
    {"NCCL_IB_HCA", AcrossRanks::free},
    {"NCCL_SOCKET_IFNAME", AcrossRanks::free},
    // The launcher, which tells each rank something else.
    {"OMPI_COMM_WORLD_RANK", AcrossRanks::free},
    {"OMPI_MCA_orte_ess_num_procs", AcrossRanks::free},
    {"OMPI_COMM_WORLD_SIZE", AcrossRanks::free},
    {"PMIX_NAMESPACE", AcrossRanks::free},
    {"PMIX_RANK", AcrossRanks::free},
    {"PMIX_SERVER_TMPDIR", AcrossRanks::free},
    {"PRTE_LAUNCHED", AcrossRanks::free},
    {"PMI_RANK", AcrossRanks::free},
    {"PMI_SIZE", AcrossRanks::free},
    {"SLURM_PTY_PORT", AcrossRanks::free},
    {"SLURM_STEP_NUM_TASKS", AcrossRanks::free},
    // Launchers that start no MPI.
    {"FLUX_JOB_SIZE", AcrossRanks::free},
    {"JSM_NAMESPACE_SIZE", AcrossRanks::free},
    {"LOCAL_RANK", AcrossRanks::free},
    {"LOCAL_WORLD_SIZE", AcrossRanks::free},
    {"MV2_COMM_WORLD_SIZE", AcrossRanks::free},
    {"RANK", AcrossRanks::free},
    {"WORLD_SIZE", AcrossRanks::free},
    // Which ranks count as neighbours, for tests.
    {"NEMOCUBE_NODE", AcrossRanks::free},
    // Where the local cache of the Hugging Face Hub is (data/hf/hub_cache.h). Ranks compare the files that
    // they read.
    {"HF_HUB_CACHE", AcrossRanks::free},
    {"HUGGINGFACE_HUB_CACHE", AcrossRanks::free},
    {"HF_HOME", AcrossRanks::free},
    {"XDG_CACHE_HOME", AcrossRanks::free},
    {"HOME", AcrossRanks::free},
    // Output.
    {"CUDA_EMULATOR_COUNTERS", AcrossRanks::free},
    {"CUDA_EMULATOR_TIMELINE", AcrossRanks::free},
    {"NO_COLOR", AcrossRanks::free},
    {"TERM", AcrossRanks::free},
});

/// The name of a variable in the table; another name does not compile.
class KnownVariable {
 public:
  consteval KnownVariable(const char* name) : name_(name) {
    const auto named = [&](const EnvironmentVariable& v) { return std::string_view(v.name) == name; };
    if (std::ranges::count_if(environment_variables, named) != 1)
      throw "the variable is not in environment_variables";
  }
  constexpr const char* name() const { return name_; }

 private:
  const char* name_;
};

/// The value of a variable, or null when it is not set.
const char* environment_variable(KnownVariable variable);
/// The value of a variable that a recipe names, or that the value of another variable names. Ranks need not
/// compare it: the value is in the resolved recipe, which the ranks of a run compare.
const char* variable_named_in_recipe(const std::string& name);
/// The same for a row of the table.
const char* environment_variable(const EnvironmentVariable& variable);

}  // namespace nemocube
