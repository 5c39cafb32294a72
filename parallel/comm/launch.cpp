#include "parallel/comm/launch.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace nemocube {
namespace {

int number(const char* variable, int least, int most) {
  const char* text = std::getenv(variable);
  if (!text) return least;
  int value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  require(error == std::errc() && *end == '\0' && value >= least && value <= most, variable,
          ": want an integer from ", least, " to ", most, ", got '", text, "'");
  return value;
}

}  // namespace

Launch read_launch() {
  struct Variables {
    const char *size, *rank;
  };
  // Slurm sets its own variables in batch scripts too; PMIX_RANK only in processes that srun starts as ranks.
  static constexpr std::array known{Variables{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                    Variables{"PMI_SIZE", "PMI_RANK"},
                                    Variables{"SLURM_STEP_NUM_TASKS", "PMIX_RANK"}};
  for (const Variables& v : known) {
    if (!std::getenv(v.size) || (v.rank == std::string("PMIX_RANK") && !std::getenv(v.rank))) continue;
    Launch launch;
    launch.variable = v.size;
    launch.size = number(v.size, 1, std::numeric_limits<int>::max());
    launch.rank = number(v.rank, 0, launch.size - 1);
    return launch;
  }
  return {};
}

}  // namespace nemocube
