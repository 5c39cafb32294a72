#include "train/profile/trace_file.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/json/json.h"
#include "data/json/test_dir.h"
#include "tests/support/ranks.h"
#include "tests/support/shared_dir.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// Rank r has r + 1 pieces of two numbers each.
std::function<std::string()> pieces_of(int rank) {
  return [rank, piece = 0]() mutable {
    if (piece > rank) return std::string();
    const int number = rank * 100 + piece++;
    return cat(",\n", number, ",\n", number, std::string(piece == 2 ? 3'000'000 : 1, ' '));
  };
}

}  // namespace

TEST_CASE("trace file: rank 0 writes the pieces of all ranks, in their order") {
  Communicator& all = test_world().communicator();
  const SharedDir dir;
  const std::filesystem::path file = dir.path() / "new" / "profile" / "steps.json";
  const TraceFileResult result = write_trace(all, file, R"({"steps": "5-7"})", pieces_of(all.rank()));
  CHECK(result.problem.empty());
  all.host_barrier();
  if (all.rank() > 0) return;
  CHECK(result.bytes == static_cast<std::int64_t>(std::filesystem::file_size(file)));
  const Json trace = read_json_file(file);
  CHECK(trace["otherData"]["steps"] == "5-7");
  std::vector<int> want;
  for (int rank = 0; rank < all.size(); ++rank)
    for (int piece = 0; piece <= rank; ++piece) want.insert(want.end(), 2, rank * 100 + piece);
  CHECK(trace["traceEvents"].get<std::vector<int>>() == want);
}

TEST_CASE("trace file: where there is no place for it, all pieces are taken and the ranks go on") {
  Communicator& all = test_world().communicator();
  const SharedDir dir;
  if (all.rank() == 0) spit(dir.path() / "profile", "a file");
  all.host_barrier();
  const TraceFileResult result =
      write_trace(all, dir.path() / "profile" / "steps.json", "{}", pieces_of(all.rank()));
  CHECK(result.problem.empty() == (all.rank() > 0));
  if (all.rank() == 0) CHECK(result.problem.find("profile") != std::string::npos);
  CHECK(result.bytes == 0);
  CHECK(all.host_all_reduce(std::int64_t{1}) == all.size());
}
