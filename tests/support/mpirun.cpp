#include "tests/support/mpirun.h"

#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace nemocube::testing {
namespace {

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

std::string shell_text(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += quoted(word) + " ";
  return text;
}

/// Where mpirun of Open MPI 5 has the directories of its jobs: a folder of this test program's own. The
/// directory of a job whose mpirun was killed stays, and a later mpirun with the same process number would
/// not start.
class JobDirectories {
 public:
  JobDirectories() : path_(std::filesystem::temp_directory_path() / cat("nemocube-jobs-", ::getpid())) {
    std::filesystem::create_directories(path_);
    ::setenv("PRTE_MCA_prte_tmpdir_base", path_.c_str(), 1);
  }
  ~JobDirectories() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  JobDirectories(const JobDirectories&) = delete;
  JobDirectories& operator=(const JobDirectories&) = delete;

 private:
  std::filesystem::path path_;
};

void set_environment_of_mpirun() {
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  // On some machines Open MPI 5 cannot connect ranks of one machine by any device but the loopback device.
  ::setenv("OMPI_MCA_btl_tcp_if_include", "lo", 1);
  static const JobDirectories directories;
}

}  // namespace

Words mpirun(int ranks, const Words& program) {
  set_environment_of_mpirun();
  ::setenv("OMP_NUM_THREADS", "1", 1);
  return plus({mpirun_program(), "--oversubscribe", "--bind-to", "none", "-np", std::to_string(ranks)},
              program);
}

Words mpirun(int ranks, const Words& program, const Words& program_of_last_rank) {
  return mpirun(ranks, {"sh", "-c",
                        cat("if [ \"$OMPI_COMM_WORLD_RANK\" = ", ranks - 1, " ]; then exec ",
                            shell_text(program_of_last_rank), "; else exec ", shell_text(program), "; fi")});
}

int open_mpi_release() {
  static const int release = [] {
    const std::string said = run_process({mpirun_program(), "--version"}).out;  // "mpirun (Open MPI) 4.1.4"
    const std::size_t number = said.find(") ");
    require(number != said.npos && std::isdigit(static_cast<unsigned char>(said[number + 2])),
            mpirun_program(), " --version: want the version of Open MPI, got ", said);
    return std::stoi(said.substr(number + 2));
  }();
  return release;
}

}  // namespace nemocube::testing
