#include "tests/support/process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "core/error.h"

namespace nemocube::testing {
namespace {

std::string read_and_remove(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  std::filesystem::remove(path);
  return std::move(text).str();
}

struct ProcessState {
  char state = 'X';  // of /proc/PID/stat; X: there is no such process
  int parent = 0;
};
ProcessState state_of(const std::string& pid) {
  std::ifstream stat(std::filesystem::path("/proc") / pid / "stat");
  std::string text;
  std::getline(stat, text);
  ProcessState state;
  const auto name_end = text.rfind(')');  // the name before may hold anything
  if (name_end != text.npos) std::sscanf(text.c_str() + name_end + 2, "%c %d", &state.state, &state.parent);
  return state;
}

}  // namespace

bool is_alive(int pid) {
  const char state = state_of(std::to_string(pid)).state;
  return state != 'X' && state != 'Z';
}

std::vector<int> children_of(int parent) {
  std::vector<int> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") == name.npos && state_of(name).parent == parent)
      children.push_back(std::stoi(name));
  }
  std::ranges::sort(children);
  return children;
}

Process::Process(const std::vector<std::string>& arguments, const std::filesystem::path& directory) {
  static std::atomic<int> counter{0};
  const auto base =
      std::filesystem::temp_directory_path() / cat("nemocube-process-", ::getpid(), "-", counter++);
  out_ = base.string() + ".out";
  err_ = base.string() + ".err";
  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  pid_ = ::fork();
  expect(pid_ >= 0, "fork failed");
  if (pid_ == 0) {
    const int out = ::open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int err = ::open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (out < 0 || err < 0) ::_exit(125);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(err, STDERR_FILENO);
    // The tests may run under nohup or in the background of a shell, where some of these are ignored.
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(number, SIG_DFL);
    if (!directory.empty() && ::chdir(directory.c_str()) != 0) ::_exit(126);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
}

Process::~Process() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  wait();
}

void Process::signal(int number) const { ::kill(pid_, number); }

ProcessResult Process::wait() {
  int status = 0;
  expect(::waitpid(pid_, &status, 0) == pid_, "waitpid failed");
  pid_ = -1;
  ProcessResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_and_remove(out_);
  result.err = read_and_remove(err_);
  return result;
}

ProcessResult run_process(const std::vector<std::string>& arguments, const std::filesystem::path& directory) {
  return Process(arguments, directory).wait();
}

}  // namespace nemocube::testing
