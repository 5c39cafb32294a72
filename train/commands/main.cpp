#include <fcntl.h>
#include <oneapi/dnnl/dnnl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "core/allocator.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/log.h"
#include "core/version.h"
#include "parallel/comm/job/failure.h"
#include "parallel/comm/job/launch.h"
#include "train/commands/commands.h"
#include "train/commands/overrides.h"

namespace {

constexpr int exit_user_error = 2, exit_internal_error = 70;

std::string version_text() {
  const dnnl_version_t* dnn = dnnl_version();
  std::string text =
      nemocube::cat("nemocube ", nemocube::version(), "\n  cpu   yes (oneDNN ", dnn->major, ".", dnn->minor,
                    ".", dnn->patch, ", ", NEMOCUBE_ARCHITECTURE, ")\n  cuda  ");
  const std::string cuda = NEMOCUBE_CUDA_TOOLKIT, no_cuda = NEMOCUBE_NO_CUDA;
  text += no_cuda.empty() ? "yes (CUDA " + cuda + ")" : "no (" + no_cuda + ")";
  return text + "\n  mpi   yes (MPI " NEMOCUBE_MPI ")";
}

// OpenMP threads that wait by spinning make every parallel loop ten times slower as soon as another program
// wants the same cores. The runtime reads its settings before main, so a short spin is set for a second start
// of this program.
void wait_politely(char** argv) {
  if (nemocube::environment_variable("OMP_WAIT_POLICY") || nemocube::environment_variable("GOMP_SPINCOUNT"))
    return;
  ::setenv("GOMP_SPINCOUNT", "2000", 1);
  ::execv("/proc/self/exe", argv);  // if this fails, the run still works but spins longer
}

// If a standard stream is closed, the next opened file would get its descriptor and collect the messages.
void keep_standard_descriptors() {
  for (int file = 0; file < 3; ++file)
    if (::fcntl(file, F_GETFD) < 0 && errno == EBADF) ::open("/dev/null", O_RDONLY);
}

void run(int argc, char** argv) {
  const nemocube::Launch launch = nemocube::read_launch();
  nemocube::set_log_rank(launch.rank, launch.size);
  nemocube::Command app{"nemocube: trains and fine-tunes NemotronH models"};
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  app.fallthrough();
  std::string level = "info";
  app.add_option("--log-level", level, "debug, info, warning or error")->capture_default_str();
  app.parse_complete_callback([&] { nemocube::set_log_level(nemocube::parse_log_level(level)); });
  nemocube::add_train_command(app);
  nemocube::add_eval_command(app);
  nemocube::add_generate_command(app);
  nemocube::add_forward_command(app);
  nemocube::add_convert_command(app);
  nemocube::add_tokenize_command(app);
  nemocube::add_inspect_command(app);
  nemocube::add_bench_command(app);
  nemocube::add_grid_command(app);
  nemocube::add_plan_command(app);
  nemocube::add_report_command(app);
  nemocube::add_watch_command(app);
  app.parse(argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  using nemocube::report_failure;
  keep_standard_descriptors();
  wait_politely(argv);
  ::prctl(PR_SET_NAME, "nemocube");  // the second start has left "exe", the name of its link in /proc
  // Then exceeding the file size limit is an error of write(), with a message, like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  std::vector<std::string> arguments = nemocube::spell_out_overrides({argv + 1, argv + argc});
  arguments.insert(arguments.begin(), argv[0]);
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  try {
    run(static_cast<int>(words.size()), words.data());
    std::cout.flush();
    nemocube::require(std::cout.good(), "standard output: cannot be written to its end");
    return 0;
  } catch (const nemocube::Error& e) {
    return report_failure(e.what(), exit_user_error);
  } catch (const std::filesystem::filesystem_error& e) {
    return report_failure(nemocube::cat(e.path1().string(), ": ", e.code().message()), exit_user_error);
  } catch (const std::system_error& e) {  // files that open and cannot be read
    return report_failure(e.what(), exit_user_error);
  } catch (const std::bad_alloc&) {
    return report_failure("out of memory: what was asked for does not fit; " + nemocube::memory_in_use(),
                          exit_user_error);
  } catch (const std::length_error& e) {
    return report_failure(nemocube::cat("out of memory: what was asked for does not fit (", e.what(), ")"),
                          exit_user_error);
  } catch (const std::exception& e) {
    return report_failure(e.what(), exit_internal_error);
  }
}
