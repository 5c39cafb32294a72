#include <doctest/doctest.h>

#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// Folders of ops that have a benchmark.
std::set<std::string> benchmarked() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(source_dir() / "ops"))
    if (entry.path().filename().string().ends_with("_bench.cpp"))
      names.insert(entry.path().parent_path().filename().string());
  return names;
}

}  // namespace

TEST_CASE("bench op: every operation verifies and reports work, time and floor, in every dtype") {
  wait_politely();
  const std::set<std::string> folders = benchmarked();
  CHECK(folders.size() >= 16);
  for (const char* dtype : {"f32", "bf16", "f64"}) {
    CAPTURE(dtype);
    const ProcessResult run = run_process(
        {NEMOCUBE_BINARY, "bench", "op", "--small", "--repeats", "1", "--json", "--dtype", dtype});
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    std::set<std::string> ops;
    std::set<std::pair<std::string, std::string>> variants;  // by the first word of a case
    for (const std::string& text : lines_of(run.out)) {
      CAPTURE(text);
      const Json line = parse_json(text, "a line of bench op");
      const auto op = line.at("op").get<std::string>(), variant = line.at("variant").get<std::string>();
      ops.insert(op);
      variants.insert({op, variant.substr(0, variant.find(' '))});
      CHECK_FALSE(line.at("shape").get<std::string>().empty());
      CHECK(line.at("ok") == true);
      CHECK(line.at("bytes").get<double>() > 0);
      CHECK(line.at("flops").get<double>() >= 0);  // moving rows is no arithmetic
      CHECK(line.at("us_median").get<double>() > 0);
      CHECK(line.at("floor_us").get<double>() > 0);
      CHECK(line.at("of_floor").get<double>() > 0);
    }
    CHECK(ops == folders);
    for (const auto& both : {std::pair{"attention", std::pair{"tiled", "plain"}},
                             {"rmsnorm", {"fused", "separate"}},
                             {"ssd_scan", {"chunked", "recurrent"}}}) {
      CAPTURE(both.first);
      CHECK(variants.contains({both.first, both.second.first}));
      CHECK(variants.contains({both.first, both.second.second}));
    }
  }
}

TEST_CASE("bench step: the last line is JSON with the times of every step") {
  wait_politely();
  for (const char* dtype : {"f32", "bf16"}) {
    CAPTURE(dtype);
    const ProcessResult run =
        run_process({NEMOCUBE_BINARY, "bench", "step", "--config", source_dir() / "tests/goldens/all_four",
                     "--batch", "2", "--seq", "16", "--steps", "3", "--json", "--dtype", dtype});
    CAPTURE(run.out);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    const Json line = parse_json(lines_of(run.out).back(), "the last line of bench step");
    const auto seconds = line.at("step_seconds").get<std::vector<double>>();
    CHECK(seconds.size() == 3);
    for (const double s : seconds) CHECK(s > 0);
    for (const char* key : {"tokens_per_second", "peak_bytes", "gemm_seconds", "flops"}) {
      CAPTURE(key);
      CHECK(line.at(key).get<double>() > 0);
    }
  }
}
