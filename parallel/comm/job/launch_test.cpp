#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "core/error.h"
#include "core/host_name.h"
#include "parallel/comm/job/launch.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// Environment variables for the time of a test; those of a launcher that runs the tests go away.
class Variables {
 public:
  explicit Variables(const std::map<std::string, std::string>& values) {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK",
                             "SLURM_STEP_NUM_TASKS", "PMIX_RANK", "PRTE_LAUNCHED", "PMIX_NAMESPACE"}) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      ::unsetenv(name);
    }
    for (const auto& [name, value] : values) ::setenv(name.c_str(), value.c_str(), 1);
    set_ = values;
  }
  ~Variables() {
    for (const auto& [name, value] : set_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  std::map<std::string, std::string> before_, set_;
};

}  // namespace

TEST_CASE("launch: rank and size come from mpirun, PMI or srun; a batch script alone starts no ranks") {
  const auto launch = [](const std::map<std::string, std::string>& values) {
    const Variables variables(values);
    return read_launch();
  };
  CHECK(launch({}).size == 1);
  CHECK(launch({}).variable.empty());
  const Launch open_mpi = launch({{"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_RANK", "7"}});
  CHECK(open_mpi.size == 8);
  CHECK(open_mpi.rank == 7);
  CHECK(open_mpi.variable == "OMPI_COMM_WORLD_SIZE");
  CHECK(launch({{"PMI_SIZE", "4"}, {"PMI_RANK", "2"}}).rank == 2);
  CHECK(launch({{"SLURM_STEP_NUM_TASKS", "4"}, {"PMIX_RANK", "3"}}).rank == 3);
  CHECK(launch({{"SLURM_STEP_NUM_TASKS", "4"}}).size == 1);
}

TEST_CASE("launch: numbers that cannot be are refused with the variable's name") {
  const Variables variables({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "4"}});
  CHECK(message_of([] { read_launch(); }) == "OMPI_COMM_WORLD_RANK: want an integer from 0 to 3, got '4'");
  ::setenv("OMPI_COMM_WORLD_SIZE", "two", 1);
  CHECK(message_of([] { read_launch(); }).find("OMPI_COMM_WORLD_SIZE: want an integer from 1") == 0);
}

TEST_CASE("launch: mpirun of Open MPI 5 is named by its process, which passes SIGUSR1 on") {
  const auto stop = [](const std::map<std::string, std::string>& more) {
    std::map<std::string, std::string> values{{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}};
    values.insert(more.begin(), more.end());
    const Variables variables(values);
    return read_launch().stop_command;
  };
  CHECK(stop({}).empty());
  CHECK(stop({{"PMIX_NAMESPACE", "1234"}}).empty());  // Open MPI 4
  CHECK(stop({{"PRTE_LAUNCHED", "1"}, {"PMIX_NAMESPACE", cat("prterun-", host_name(""), "-1234@1")}}) ==
        "kill -USR1 1234");
  CHECK(stop({{"PRTE_LAUNCHED", "1"}, {"PMIX_NAMESPACE", "prterun-other-node-7-1234@1"}}) ==
        "kill -USR1 1234 on other-node-7");
  CHECK(stop({{"PRTE_LAUNCHED", "1"}, {"PMIX_NAMESPACE", "other"}}) == "SIGUSR1 to mpirun");
}

TEST_CASE("launch: processes that a launcher started without MPI are told how to start instead") {
  const auto apart = [](const std::map<std::string, std::string>& values) {
    return started_apart([&](KnownVariable v) {
      const auto found = values.find(v.name());
      return found == values.end() ? nullptr : found->second.c_str();
    });
  };
  CHECK(apart({{"SLURM_STEP_NUM_TASKS", "8"}}) ==
        "srun has started 8 processes without MPI, and each would work alone: start them by srun --mpi=pmix, "
        "or one "
        "by srun --ntasks=1 (SLURM_STEP_NUM_TASKS is 8)");
  const std::string torchrun = apart({{"WORLD_SIZE", "4"}, {"RANK", "0"}, {"LOCAL_RANK", "0"}});
  CHECK(torchrun ==
        "this process is one of several that were started without MPI, and each would work alone: start "
        "ranks by "
        "mpirun or srun --mpi=pmix in place of torchrun and its like, or unset WORLD_SIZE for one process "
        "(WORLD_SIZE "
        "is 4)");
  for (const char* size :
       {"LOCAL_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "FLUX_JOB_SIZE"}) {
    CAPTURE(size);
    CHECK(apart({{size, "2"}}).find(cat("(", size, " is 2)")) != std::string::npos);
    CHECK(apart({{size, "1"}}).empty());
  }
  CHECK(apart({{"WORLD_SIZE", "1"}, {"RANK", "0"}, {"LOCAL_RANK", "0"}}).empty());
  CHECK(apart({{"LOCAL_RANK", "1"}}).find("(LOCAL_RANK is 1)") != std::string::npos);
  CHECK(apart({{"SLURM_STEP_NUM_TASKS", "1"}}).empty());
  CHECK(apart({{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PTY_PORT", "4711"}}).empty());
  CHECK(apart({{"WORLD_SIZE", "many"}, {"RANK", "my"}}).empty());
  CHECK(apart({}).empty());
}
