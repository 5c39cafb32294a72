#pragma once
#include <exception>
#include <filesystem>
#include <optional>
#include <string>

#include "data/json/test_dir.h"
#include "parallel/comm/together.h"
#include "tests/support/ranks.h"

namespace nemocube::testing {

/// A new directory for one test, which all ranks of test_comm share. Rank 0 removes it when all are done.
class SharedDir {
 public:
  SharedDir() {
    if (test_world().rank() == 0) own_.emplace();
    path_ = broadcast_text(&test_world().communicator(), own_ ? own_->path().string() : "");
  }
  ~SharedDir() {
    if (std::uncaught_exceptions() == 0) test_world().communicator().host_barrier();
  }
  SharedDir(const SharedDir&) = delete;
  SharedDir& operator=(const SharedDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::optional<TestDir> own_;  // on rank 0
  std::filesystem::path path_;
};

}  // namespace nemocube::testing
