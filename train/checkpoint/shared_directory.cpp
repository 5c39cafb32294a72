#include "train/checkpoint/shared_directory.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "core/host_name.h"
#include "data/json/atomic_file.h"
#include "parallel/comm/together.h"
#include "train/checkpoint/checkpoint_folder.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

void check_shared_directory(const fs::path& directory, Communicator* ranks) {
  if (!ranks || ranks->size() == 1) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const std::string name =
      broadcast_text(ranks, temporary_sibling(directory / CheckpointFolder::token_name).filename().string());
  // The time tells the file from one of the same name that another job has left.
  const std::string token =
      broadcast_text(ranks, cat(host_name("an unknown host"), ' ', ::getpid(), ' ', now, '\n'));
  on_rank_0(ranks, [&] { write_file_atomically(directory / name, token); });
  const bool seen = contents(directory / name) == token;
  const auto blind = gather_texts(ranks, seen ? "" : host_name("an unknown host"));
  const std::string host_of_rank_0 = broadcast_text(ranks, host_name("an unknown host"));
  on_rank_0(ranks, [&] {
    std::error_code ignored;
    fs::remove(directory / name, ignored);
  });
  const auto first = std::ranges::find_if(blind, [](const std::string& host) { return !host.empty(); });
  if (first == blind.end()) return;
  const auto count = blind.end() - first - std::count(first, blind.end(), std::string());
  fail("checkpoint.checkpoint_dir: ", directory.string(), ": rank ", first - blind.begin(), " on host ",
       *first, count > 1 ? cat(" and ", count - 1, " more do") : " does",
       " not see a file that rank 0 has just written there on host ", host_of_rank_0,
       "; want a directory that all ranks share");
}

}  // namespace nemocube
