#include <dnnl.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "core/error.h"
#include "core/log.h"
#include "train/commands/commands.h"

namespace {

constexpr int exit_user_error = 2, exit_internal_error = 70;

std::string version_text() {
  const dnnl_version_t* dnn = dnnl_version();
  std::string text = nemocube::cat("nemocube ", NEMOCUBE_VERSION, "\n  cpu   yes (oneDNN ", dnn->major, ".",
                                   dnn->minor, ".", dnn->patch, ", ", NEMOCUBE_ARCHITECTURE, ")\n  cuda  no");
  const std::string cuda = NEMOCUBE_CUDA_TOOLKIT, mpi = NEMOCUBE_MPI;
  text += cuda.empty() ? " (no toolkit found)"
                       : " (toolkit " + cuda + " found; this version has no CUDA kernels)";
  text += "\n  mpi   no";
  text += mpi.empty() ? " (not found)" : " (MPI " + mpi + " found; this version runs on one rank)";
  return text;
}

// Without a process grid, several ranks would each train the whole job into the same files.
void refuse_many_ranks() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* value = std::getenv(name);
    if (value && std::atoi(value) > 1)
      nemocube::fail("started on ", value, " ranks, but this version runs on one; start it without mpirun");
  }
}

int run(int argc, char** argv) {
  CLI::App app{"nemocube: trains and fine-tunes NemotronH models"};
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  app.fallthrough();
  std::string level = "info";
  app.add_option("--log-level", level, "debug, info, warning or error")->capture_default_str();
  app.parse_complete_callback([&] {
    nemocube::set_log_level(nemocube::parse_log_level(level));
    refuse_many_ranks();
  });
  nemocube::add_train_command(app);
  nemocube::add_eval_command(app);
  nemocube::add_generate_command(app);
  nemocube::add_forward_command(app);
  nemocube::add_convert_command(app);
  nemocube::add_tokenize_command(app);
  nemocube::add_inspect_command(app);
  nemocube::add_bench_command(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : exit_user_error;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const nemocube::Error& e) {
    nemocube::write_log(nemocube::LogLevel::error, e.what());
    return exit_user_error;
  } catch (const std::exception& e) {
    nemocube::write_log(nemocube::LogLevel::error, e.what());
    return exit_internal_error;
  }
}
