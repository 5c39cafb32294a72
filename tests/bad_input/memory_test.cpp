#include "core/sanitizers.h"
#include "tests/bad_input/refused.h"
#include "tests/support/occurrences.h"
#include "tests/training/config_warning.h"

using namespace nemocube;
using namespace nemocube::testing;

// oneDNN writes through a null pointer, and OpenMP ends the program, where either gets no memory.
TEST_CASE("out of memory: every limit of the address space ends in a message or in a trained model") {
  if (has_address_sanitizer()) {
    MESSAGE("skipped: AddressSanitizer needs more address space than any limit leaves");
    return;
  }
  const RunDir dir;
  const std::string warning = make_config_warn(dir / "model");
  int refused = 0, explained = 0, owned = 0;
  for (const int mib : {65, 75, 85, 120, 135, 150, 165, 180, 240}) {
    CAPTURE(mib);
    std::vector<std::string> command{"sh", "-c", cat("ulimit -v ", mib * 1024, "; exec \"$0\" \"$@\"")};
    for (const std::string& part : RunDir::train_command({"step_scheduler.max_steps=1", "lr_scheduler=null"}))
      command.push_back(part);
    const ProcessResult run = run_process(command, dir.path());
    CAPTURE(run.err);
    CHECK(occurrences(run.err, warning) <= 1);
    if (run.exit_code == 0) continue;
    check_message(run, {"out of memory", "tensors hold ", "(address space, ulimit -v)"});
    ++refused;
    explained += run.err.find("; training needs about ") != std::string::npos &&
                 run.err.find(" or divide the model among more ranks") != std::string::npos;
    owned += run.err.find("weights ") != std::string::npos &&
             run.err.find("gradients ") != std::string::npos &&
             run.err.find("optimizer state ") != std::string::npos;
  }
  CHECK(refused >= 3);
  CHECK(owned >= 1);
  CHECK(explained >= 1);  // where the recipe's files can still be read
}
