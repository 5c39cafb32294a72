#include <doctest/doctest.h>

#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/outcome.h"

/// `run --timeline` of programs.
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("timeline_test_" + std::to_string(getpid()))) {
    fs::create_directory(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }

 private:
  fs::path path_;
};

std::string text_of(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

const std::string run = "'" CUDA_EMULATOR_RUN "' ";
const std::string copy = "'" CUDA_EMULATOR_TRAFFIC "' copy";

/// Seconds of the one kernel of the trace.
double kernel_microseconds(const std::string& trace) {
  const std::size_t name = trace.find("\"name\":\"kernel "), at = trace.find("\"dur\":", name);
  REQUIRE(name != std::string::npos);
  return std::stod(trace.substr(at + 6));
}

}  // namespace

TEST_CASE("run --timeline: a kernel takes the time of its bytes, at the rates that are given") {
  const Folder folder;
  const std::string trace = folder.file("trace.json"), rates = folder.file("rates");
  std::ofstream(rates) << "dram 1e9\nkernel_share 0.5\n";
  const Outcome outcome =
      outcome_of(run + "--no-check --l2 1M --timeline '" + trace + "' --rates '" + rates + "' " + copy);
  CAPTURE(outcome.text);
  REQUIRE(outcome.status == 0);
  CHECK(outcome.text.find("timeline, estimated:") != std::string::npos);
  CHECK(outcome.text.find("communication exposes 0.000 ms") != std::string::npos);
  // Counters are no part of this.
  CHECK(outcome.text.find("launches") == std::string::npos);
  CHECK(kernel_microseconds(text_of(trace)) ==
        doctest::Approx(2.0 * 4096 * 512 * 4 / (0.5 * 1e9) * 1e6).epsilon(0.02));
  CHECK(folder.files() == 2);  // no record is left
}

TEST_CASE("run --timeline: several processes become one trace, and the program's exit status stays") {
  const Folder folder;
  const std::string trace = folder.file("trace.json");
  const Outcome outcome = outcome_of(run + "--no-check --timeline '" + trace + "' " + copy + " 7");
  CAPTURE(outcome.text);
  CHECK(outcome.status == 7);
  const std::string text = text_of(trace);
  CHECK(count(text, "rank 0, device 0") == 2);
  CHECK(kernel_microseconds(text) > 0);
}

TEST_CASE("run --timeline: a signal reaches the program, and the timeline is written when it has ended") {
  for (const int signal : {SIGTERM, SIGINT}) {
    const Folder folder;
    const std::string trace = folder.file("trace.json"), said = folder.file("said");
    const Outcome outcome = outcome_of(run + "--no-check --timeline '" + trace + "' " + copy + " wait >'" +
                                       said + "' 2>&1 & run=$!; " + "until grep -q waits '" + said +
                                       "' || ! kill -0 $run; do sleep 0.1; done; kill -" +
                                       std::to_string(signal) + " $run; wait $run");
    const std::string text = text_of(said);
    CAPTURE(outcome.text);
    CAPTURE(text);
    CHECK(outcome.status == signal);
    CHECK(count(text, "timeline, estimated:") == 1);
    CHECK(kernel_microseconds(text_of(trace)) > 0);
    CHECK(folder.files() == 2);  // no record is left
  }
}

TEST_CASE("run --timeline: a program that cannot be started leaves nothing") {
  const Folder folder;
  const Outcome outcome = outcome_of(run + "--timeline '" + folder.file("t") + "' /nowhere/program");
  CAPTURE(outcome.text);
  CHECK(outcome.status == 127);
  CHECK(outcome.text.find("cannot start /nowhere/program: No such file") != std::string::npos);
  CHECK(folder.files() == 0);
}

TEST_CASE("run --timeline: what cannot be is refused before the program starts") {
  const Folder folder;
  const auto refused = [&](const std::string& options, const std::string& why) {
    const Outcome outcome = outcome_of(options + " echo started");
    CAPTURE(outcome.text);
    CHECK(outcome.status == 2);
    CHECK(outcome.text.find(why) != std::string::npos);
    CHECK(outcome.text.find("started") == std::string::npos);
  };
  refused(run + "--timeline /nowhere/t.json", "cannot write the timeline to /nowhere/t.json");
  refused(run + "--rates /nowhere/rates --timeline '" + folder.file("t") + "'",
          "cannot read the rates /nowhere/rates");
  std::ofstream(folder.file("rates")) << "launch 1\n";
  refused(run + "--rates '" + folder.file("rates") + "'", "--rates says nothing without --timeline");
  refused("OMPI_COMM_WORLD_RANK=1 " + run + "--timeline '" + folder.file("t") + "'",
          "--timeline goes before mpirun");
  std::ofstream(folder.file("rates")) << "lunch 1\n";
  refused(run + "--timeline '" + folder.file("t") + "' --rates '" + folder.file("rates") + "'",
          "line 1: there is no rate 'lunch'");
}
