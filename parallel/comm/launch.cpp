#include "parallel/comm/launch.h"

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

/// "kill -USR1 1234", or "kill -USR1 1234 on HOST" from another machine, by the name that PRRTE gives the job:
/// prterun-HOST-PROCESS@NUMBER.
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

}  // namespace

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
