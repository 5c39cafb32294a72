#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace nemocube::testing {

using Words = std::vector<std::string>;

inline Words plus(Words base, const Words& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

struct ProcessResult {
  int exit_code = 0;  ///< 128 + signal when killed
  std::string out, err;
};
/// Runs a program with arguments in `directory` (empty: the current one) and waits. No shell.
ProcessResult run_process(const std::vector<std::string>& arguments,
                          const std::filesystem::path& directory = {});

bool is_alive(int pid);  ///< false for a process that has ended and for which nobody has waited yet
std::vector<int> children_of(int parent);  ///< processes, in the order of their ids

/// A program that is still running.
class Process {
 public:
  explicit Process(const std::vector<std::string>& arguments, const std::filesystem::path& directory = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  void signal(int number) const;
  int pid() const { return pid_; }
  ProcessResult wait();

 private:
  int pid_ = -1;
  std::filesystem::path out_, err_;
};

}  // namespace nemocube::testing
