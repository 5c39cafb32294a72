#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "tests/support/paths.h"
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
    const ProcessResult run =
        run_process({program(), "bench", "op", "--small", "--repeats", "1", "--json", "--dtype", dtype});
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    const std::vector<std::string> lines = lines_of(run.out);
    REQUIRE(lines.size() > 1);
    const Json first = parse_json(lines.front(), "the first line of bench op");
    const Json& machine = first.at("machine");
    CHECK_FALSE(machine.at("cpu").get<std::string>().empty());
    CHECK_FALSE(machine.at("version").get<std::string>().empty());
    CHECK(machine.at("threads").get<int>() >= 1);
    CHECK(machine.at("cores").get<int>() >= 1);
    CHECK(machine.at("caches").is_object());
    CHECK(machine.at("memory").get<std::int64_t>() > 0);
    CHECK(first.at("rates").at("product_GFLOPs").get<double>() > 0);
    CHECK(first.at("rates").at("bandwidth").size() > 1);
    std::set<std::string> ops;
    std::set<std::pair<std::string, std::string>> variants;  // by the first word of a case
    for (std::size_t i = 1; i < lines.size(); ++i) {
      CAPTURE(lines[i]);
      const Json line = parse_json(lines[i], "a line of bench op");
      const auto op = line.at("op").get<std::string>(), variant = line.at("variant").get<std::string>();
      ops.insert(op);
      variants.insert({op, variant.substr(0, variant.find(' '))});
      CHECK(line.at("dtype") == dtype);
      CHECK(line.at("cold") == false);
      CHECK_FALSE(line.at("shape").empty());
      for (const Json& size : line.at("shape")) CHECK(size.get<std::int64_t>() > 0);
      CHECK(line.at("ok") == true);
      CHECK(line.at("bytes").get<double>() > 0);
      CHECK(line.at("GFLOPs").is_null() == (line.at("flops").get<double>() == 0));
      for (const char* key : {"us_median", "us_best", "GBps", "floor_us", "of_floor"}) {
        CAPTURE(key);
        CHECK(line.at(key).get<double>() > 0);
      }
      CHECK_FALSE(line.at("bound").get<std::string>().empty());
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

TEST_CASE("bench op: the table has its legend, aligned columns and no GFLOP/s where there are no products") {
  wait_politely();
  const ProcessResult run =
      run_process({program(), "bench", "op", "--op", "router", "--small", "--repeats", "1", "--cold"});
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CAPTURE(run.out);
  for (const char* text :
       {"machine: ", "measured: ", "cold caches", "least memory traffic", "of floor", "ok   "})
    CHECK(run.out.find(text) != std::string::npos);
  const std::vector<std::string> lines = lines_of(run.out);
  const auto header = std::ranges::find_if(lines, [](const std::string& l) { return l.starts_with("op  "); });
  REQUIRE(header != lines.end());
  CHECK(lines.end() - header == 9);
  for (auto row = header + 1; row != lines.end(); ++row) {
    CHECK(row->substr(header->find("shape")).starts_with("tokens="));
    CHECK(row->substr(header->find("bound"))
              .starts_with(row->find("products") == std::string::npos ? "DRAM" : "products"));
  }
  const ProcessResult moves =
      run_process({program(), "bench", "op", "--op", "permute", "--small", "--repeats", "1"});
  CHECK(moves.out.find(" - ") != std::string::npos);
}

TEST_CASE("bench op: what matches nothing lists what there is") {
  const ProcessResult variant =
      run_process({program(), "bench", "op", "--op", "rmsnorm", "--variant", "nope"});
  CHECK(variant.exit_code == 2);
  CHECK(variant.err.find(
            "bench op: no variant of rmsnorm contains 'nope' (there are: fused forward; fused backward;") !=
        std::string::npos);
  CHECK(variant.err.find("separate forward+backward") != std::string::npos);
  const ProcessResult op = run_process({program(), "bench", "op", "--op", "nope"});
  CHECK(op.exit_code == 2);
  CHECK(op.err.find("no operation 'nope' (there are: adamw; attention;") != std::string::npos);
}

TEST_CASE("bench: help says what every option and column means") {
  const ProcessResult op = run_process({program(), "bench", "op", "--help"});
  CHECK(op.out.find("what sets the floor") != std::string::npos);
  const ProcessResult step = run_process({program(), "bench", "step", "--help"});
  for (const ProcessResult* help : {&op, &step})
    for (const std::string& line : lines_of(help->out)) {
      if (!line.starts_with("  --")) continue;
      CAPTURE(line);
      const std::size_t text = line.find_first_not_of(' ', 30);  // CLI11 puts descriptions after column 30
      CHECK((text != std::string::npos || line.size() <= 30));
    }
}

TEST_CASE("bench step: the last line is JSON with the times of every step") {
  wait_politely();
  for (const char* dtype : {"f32", "bf16"}) {
    CAPTURE(dtype);
    const ProcessResult run =
        run_process({program(), "bench", "step", "--config", source_dir() / "tests/goldens/all_four",
                     "--batch", "2", "--seq", "16", "--steps", "3", "--json", "--dtype", dtype});
    CAPTURE(run.out);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    const Json line = parse_json(lines_of(run.out).back(), "the last line of bench step");
    CHECK_FALSE(line.at("machine").at("cpu").get<std::string>().empty());
    CHECK(line.at("dtype") == dtype);
    CHECK(line.at("batch") == 2);
    CHECK(line.at("seq") == 16);
    CHECK(line.at("zones").at("matmul").at("seconds").get<double>() > 0);
    for (const char* step : {"step 0 of 3 took", "step 2 of 3 took"})
      CHECK(run.err.find(step) != std::string::npos);
    for (const char* name : {"tokens/s", "GFLOP/s", "peak memory", "median without the first"})
      CHECK(run.out.find(name) != std::string::npos);
    const auto seconds = line.at("step_seconds").get<std::vector<double>>();
    CHECK(seconds.size() == 3);
    for (const double s : seconds) CHECK(s > 0);
    for (const char* key : {"tokens_per_second", "peak_bytes", "gemm_seconds", "flops"}) {
      CAPTURE(key);
      CHECK(line.at(key).get<double>() > 0);
    }
  }
}
