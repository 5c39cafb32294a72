#pragma once
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

/// Runs of the program on several ranks, and their processes.
namespace nemocube::testing {

using Words = std::vector<std::string>;

inline Words plus(Words base, const Words& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

struct ProcessState {
  char state = 'X';  // of /proc/PID/stat; X: there is no such process
  int parent = 0;
};
inline ProcessState state_of(const std::string& pid) {
  std::ifstream stat(std::filesystem::path("/proc") / pid / "stat");
  std::string text;
  std::getline(stat, text);
  ProcessState state;
  const auto name_end = text.rfind(')');  // the name before may hold anything
  if (name_end != text.npos) std::sscanf(text.c_str() + name_end + 2, "%c %d", &state.state, &state.parent);
  return state;
}
inline bool is_alive(int pid) {
  const char state = state_of(std::to_string(pid)).state;
  return state != 'X' && state != 'Z';
}

inline std::vector<int> children_of(int parent) {
  std::vector<int> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") == name.npos && state_of(name).parent == parent)
      children.push_back(std::stoi(name));
  }
  return children;
}

/// Waits until `path` exists, at most half a minute.
inline void wait_for(const std::filesystem::path& path) {
  for (int i = 0; i < 3000 && !std::filesystem::exists(path); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace nemocube::testing
