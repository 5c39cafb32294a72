#include "parallel/comm/job/launch.h"

#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <string_view>

#include "core/environment.h"
#include "core/error.h"
#include "core/host_name.h"

namespace nemocube {
namespace {

int number(KnownVariable variable, int least, int most) {
  const char* text = environment_variable(variable);
  if (!text) return least;
  int value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  require(error == std::errc() && *end == '\0' && value >= least && value <= most, variable.name(),
          ": want an integer from ", least, " to ", most, ", got '", text, "'");
  return value;
}

/// "kill -USR1 1234", or "kill -USR1 1234 on HOST" from another machine, by the name that PRRTE gives the
/// job: prterun-HOST-PROCESS@NUMBER.
std::string stop_command_of_prrte() {
  const char* const job = environment_variable("PMIX_NAMESPACE");
  if (!job || !environment_variable("PRTE_LAUNCHED")) return "";
  const std::string_view name(job);
  constexpr std::string_view before = "prterun-";
  const std::size_t end = name.rfind('@'), dash = name.rfind('-', end);
  if (!name.starts_with(before) || end == name.npos || dash < before.size()) return "SIGUSR1 to mpirun";
  const std::string_view host = name.substr(before.size(), dash - before.size());
  return cat("kill -USR1 ", name.substr(dash + 1, end - dash - 1),
             host == host_name("") ? "" : cat(" on ", host));
}

/// The number that a variable holds; 0 where it is not set or holds something else: it may be anybody's.
long number_or_zero(const char* text) {
  if (!text) return 0;
  long value = 0;
  const char* const last = text + std::strlen(text);
  const auto [end, error] = std::from_chars(text, last, value);
  return error == std::errc() && end == last ? value : 0;
}

}  // namespace

std::string started_apart(const VariableLookup& variable) {
  if (const long tasks = number_or_zero(variable("SLURM_STEP_NUM_TASKS"));
      tasks > 1 && !variable("SLURM_PTY_PORT"))
    return cat(
        "srun has started ", tasks,
        " processes without MPI, and each would work alone: start them by srun --mpi=pmix, or one by srun "
        "--ntasks=1 (SLURM_STEP_NUM_TASKS is ",
        tasks, ")");
  static constexpr std::array sizes{KnownVariable("WORLD_SIZE"), KnownVariable("LOCAL_WORLD_SIZE"),
                                    KnownVariable("MV2_COMM_WORLD_SIZE"), KnownVariable("JSM_NAMESPACE_SIZE"),
                                    KnownVariable("FLUX_JOB_SIZE")};
  static constexpr std::array places{KnownVariable("RANK"), KnownVariable("LOCAL_RANK")};
  const auto apart = [](KnownVariable v, long value) {
    return cat(
        "this process is one of several that were started without MPI, and each would work alone: start "
        "ranks "
        "by mpirun or srun --mpi=pmix in place of torchrun and its like, or unset ",
        v.name(), " for one process (", v.name(), " is ", value, ")");
  };
  for (const KnownVariable v : sizes)
    if (const long size = number_or_zero(variable(v)); size > 1) return apart(v, size);
  for (const KnownVariable v : places)
    if (const long place = number_or_zero(variable(v)); place > 0) return apart(v, place);
  return "";
}

Launch read_launch() {
  struct Variables {
    KnownVariable size, rank;
  };
  // Slurm sets its own variables in batch scripts too; PMIX_RANK only in processes that srun starts as ranks.
  static constexpr std::array known{Variables{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                    Variables{"PMI_SIZE", "PMI_RANK"},
                                    Variables{"SLURM_STEP_NUM_TASKS", "PMIX_RANK"}};
  for (const Variables& v : known) {
    const bool as_rank =
        environment_variable(v.rank) != nullptr || v.rank.name() != std::string_view("PMIX_RANK");
    if (environment_variable(v.size) == nullptr || !as_rank) continue;
    Launch launch;
    launch.variable = v.size.name();
    launch.size = number(v.size, 1, std::numeric_limits<int>::max());
    launch.rank = number(v.rank, 0, launch.size - 1);
    launch.stop_command = stop_command_of_prrte();
    return launch;
  }
  return {};
}

}  // namespace nemocube
