#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <regex>
#include <sstream>

#include "data/json/test_dir.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/script.h"

using namespace nemocube;
using namespace nemocube::testing;

// tools/gpu_check.sh and tools/gpu_report.sh, on machines without a GPU: programs of the names that the
// scripts call say something.

namespace {

namespace fs = std::filesystem;

std::string tool(const char* name) { return (source_dir() / "tools" / name).string(); }

/// A machine where every part passes at once, but for cases of the scan, which take a minute.
class FakeMachine {
 public:
  FakeMachine() {
    write_script(dir_ / "bin/nvidia-smi", "echo 'NVIDIA H100, 580.1, 81559 MiB, 1980 MHz'\n");
    write_script(dir_ / "bin/nvcc", "echo 'Cuda compilation tools, release 13.0'\n");
    for (const char* name : {"make", "cmake", "mpirun"}) write_script(dir_ / "bin" / name, "echo done\n");
    for (const char* name : {"test_core", "test_model", "test_train"})
      write_script(dir_ / "build" / name, "echo '[doctest] test cases:  3 |  3 passed | 0 failed'\n");
    write_script(dir_ / "build/test_ops",
                 "case \"$*\" in *ssd_scan*) sleep 60;; esac\n"
                 "echo '[doctest] test cases: 40 | 40 passed | 0 failed'\n");
    write_script(dir_ / "build/nemocube", "echo nemocube \"$@\"\n");
  }
  ProcessResult run(std::vector<std::string> words) const {
    words.insert(words.begin(), {"env", "PATH=" + (dir_ / "bin").string() + ":/usr/bin:/bin",
                                 "BUILD=" + (dir_ / "build").string(), tool("gpu_check.sh")});
    return run_process(words, dir_.path());
  }
  fs::path folder() const { return dir_ / "results"; }
  const TestDir& dir() const { return dir_; }

 private:
  TestDir dir_;
};

int occurrences(const std::string& text, const std::regex& pattern) {
  return static_cast<int>(std::distance(std::sregex_iterator(text.begin(), text.end(), pattern), {}));
}

}  // namespace

TEST_CASE("gpu check: the limits of all parts fit into ten minutes, what has not run on a GPU comes first") {
  const ProcessResult list = run_process({tool("gpu_check.sh"), "--list"});
  REQUIRE(list.exit_code == 0);
  std::istringstream lines(list.out);
  int seconds = 0, parts = 0;
  for (std::string line; std::getline(lines, line); ++parts) {
    std::istringstream words(line);
    std::string name;
    int limit = 0;
    words >> name >> limit;
    CAPTURE(line);
    CHECK(limit > 0);
    seconds += limit + 2;  // a part that does not end is killed two seconds later
  }
  CHECK(parts >= 12);
  CHECK(seconds <= 600);
  for (const char* name : {"\nscan ", "\nadapters ", "\nmtp ", "\ngraphs ", "\nnoise "})
    CHECK(list.out.find(name) < list.out.find("\nbench_op "));
}

TEST_CASE("gpu check: a slow part costs no other part, and is named") {
  const FakeMachine machine;
  const auto begin = std::chrono::steady_clock::now();
  const ProcessResult run = machine.run({"--limit", "1", machine.folder().string()});
  CAPTURE(run.out);
  CAPTURE(run.err);
  CHECK(run.exit_code == 1);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(50));
  CHECK(run.out.find("scan: ran out of its 1 s after") != std::string::npos);
  CHECK(run.out.find("gpu_check: not passed: scan; see") != std::string::npos);
  CHECK(occurrences(run.out, std::regex(": passed after")) >= 11);
  CHECK(slurp(machine.folder() / "bench_op.txt").find("bench op --device cuda") != std::string::npos);
}

TEST_CASE("gpu check: chosen parts, and words that are none") {
  const FakeMachine machine;
  const ProcessResult run = machine.run({"--parts", "machine mtp", machine.folder().string()});
  CHECK(run.exit_code == 0);
  CHECK(run.out.find("gpu_check: all 2 parts passed") != std::string::npos);
  fs::remove_all(machine.folder());
  const ProcessResult unknown = machine.run({"--parts", "mtp scam", machine.folder().string()});
  CHECK(unknown.exit_code == 2);
  CHECK(unknown.err.find("gpu_check: no part scam; the parts are machine build scan") != std::string::npos);
  CHECK_FALSE(fs::exists(machine.folder()));  // no part has run
  CHECK(machine.run({"--limit", "soon"}).exit_code == 2);
  CHECK(machine.run({"--fast"}).exit_code == 2);
}

TEST_CASE("gpu report: the page has what the parts said, and keeps its notes") {
  const FakeMachine machine;
  machine.run({"--parts", "machine mtp", machine.folder().string()});
  const ProcessResult bench = run_process({program(), "bench", "op", "--op", "rmsnorm", "--small", "--json"});
  REQUIRE(bench.exit_code == 0);
  spit(machine.folder() / "bench_op.txt", bench.out);
  const ProcessResult step = run_process({program(), "bench", "step", "--config",
                                          (source_dir() / "configs/nemotron_h_tiny").string(), "--batch", "1",
                                          "--seq", "16", "--steps", "2", "--json"});
  REQUIRE(step.exit_code == 0);
  spit(machine.folder() / "bench_step.txt", step.out);
  const fs::path page = machine.dir() / "measured.md";
  spit(page, "# Old\n\nold text\n\n## Notes\n\nBy hand.\n");
  const ProcessResult report =
      run_process({tool("gpu_report.sh"), machine.folder().string(), page.string()}, machine.dir().path());
  CAPTURE(report.err);
  REQUIRE(report.exit_code == 0);
  const std::string text = slurp(page);
  CAPTURE(text);
  CHECK(text.find("old text") == std::string::npos);
  CHECK(text.ends_with("\n## Notes\n\nBy hand.\n"));
  CHECK(text.find("NVIDIA H100, 580.1, 81559 MiB, 1980 MHz; Cuda compilation tools, release 13.0; commit ") !=
        std::string::npos);
  CHECK(std::regex_search(text, std::regex(R"(\n\| mtp \| passed after \d+ s \| 6 \|\n)")));
  const int cases = occurrences(bench.out, std::regex("\"variant\""));
  CHECK(cases >= 2);
  CHECK(occurrences(text, std::regex(R"(\| rmsnorm, [^|]* \| \d+ \| \d* \| \d* \| \d+ % \|)")) == cases);
  CHECK(std::regex_search(
      text, std::regex(R"(\| by launches \| [\d.]+ \| \d+ \| [\d.]+ \| [\d.]+ \| \d+, \d+ \|)")));
  CHECK(text.find("| by CUDA graphs | not measured |") != std::string::npos);
  // Nothing is written where something is missing.
  const ProcessResult missing =
      run_process({tool("gpu_report.sh"), (machine.dir() / "none").string(), page.string()});
  CHECK(missing.exit_code == 1);
  CHECK(missing.err.find("gpu_report: no file ") != std::string::npos);
  CHECK(slurp(page) == text);
}
