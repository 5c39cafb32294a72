#include "parallel/comm/launch.h"

#include <array>
#include <charconv>
#include <cstring>
#include <limits>

#include "core/environment.h"
#include "core/error.h"

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
    return launch;
  }
  return {};
}

}  // namespace nemocube
