#include "train/commands/resume_command.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace nemocube;

namespace {

const CommandWords program{"nemocube", "train", "my recipe.yaml", "--set", "a.b=1"};
const CommandWords restore{"--set", "checkpoint.restore_from=LATEST"};

std::string command(int ranks, const std::vector<CommandWords>& ancestors, const CommandWords& more = {}) {
  return resume_command(program, more, ranks, ancestors);
}

}  // namespace

TEST_CASE("resume command: one rank is started without a launcher, whoever its ancestors are") {
  CHECK(command(1, {{"mpirun", "-np", "1"}}) == "nemocube train 'my recipe.yaml' --set a.b=1");
  CHECK(command(1, {}, restore) ==
        "nemocube train 'my recipe.yaml' --set a.b=1 --set checkpoint.restore_from=LATEST");
}

TEST_CASE("resume command: several ranks are started by the launcher's own command line") {
  const CommandWords mpirun{"/usr/bin/mpirun", "-np",   "2",     "-x", "A=b c",
                            "build/nemocube",  "train", "r.yaml"};
  const std::vector<CommandWords> ancestors{{"bash", "-c", "..."}, mpirun, {"srun", "-n", "1"}};
  CHECK(command(2, ancestors) == "/usr/bin/mpirun -np 2 -x 'A=b c' build/nemocube train r.yaml");
  CHECK(command(2, ancestors, restore) ==
        "/usr/bin/mpirun -np 2 -x 'A=b c' build/nemocube train r.yaml --set checkpoint.restore_from=LATEST");
  CHECK(command(4, {{"mpiexec.openmpi", "-n", "4", "nemocube", "train", "r"}}) ==
        "mpiexec.openmpi -n 4 nemocube train r");
  CHECK(command(4, {{"prterun", "-n", "4", "nemocube", "train", "r"}}) == "mpirun -n 4 nemocube train r");
  CHECK(command(4, {{"/opt/bin/prterun", "-n", "4", "nemocube", "train", "r"}}) ==
        "/opt/bin/mpirun -n 4 nemocube train r");
  const CommandWords two{"mpirun", "-np", "1", "nemocube", "train", "r",
                         ":",      "-np", "1", "nemocube", "train", "r"};
  CHECK(command(2, {two}, {"--x"}) == "mpirun -np 1 nemocube train r --x : -np 1 nemocube train r --x");
}

TEST_CASE("resume command: without a launcher among the ancestors the number of ranks is said") {
  const std::string again = "start it again as before, on 3 ranks";
  CHECK(command(3, {}) == again);
  CHECK(command(3, {{}, {"orted", "-mca", "ess"}, {"my_mpirun_2"}}) == again);
  CHECK(command(3, {{"mpirun", "./job.sh"}}) == "mpirun ./job.sh");
  CHECK(command(3, {{"mpirun", "./job.sh"}}, restore) ==
        again + ", with --set checkpoint.restore_from=LATEST");
}

TEST_CASE("resume command: ancestors are read with their words") {
  const auto all = command_lines_of_ancestors();
  CHECK(std::ranges::any_of(all, [](const CommandWords& words) { return !words.empty(); }));
}
