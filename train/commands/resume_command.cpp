#include "train/commands/resume_command.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace nemocube {
namespace {

/// mpirun, /usr/bin/mpirun, mpirun.openmpi
bool is_launcher(const CommandWords& words) {
  constexpr std::array<std::string_view, 5> launchers{"mpirun", "mpiexec", "orterun", "prterun", "srun"};
  if (words.empty()) return false;
  std::string_view name = words[0];
  name.remove_prefix(name.rfind('/') + 1);  // npos + 1 is 0
  return std::ranges::count(launchers, name.substr(0, name.find('.'))) > 0;
}

/// `more` behind each program that the launcher starts: programs are separated by ":". Empty where one of
/// them is not `nemocube train`, as with a script of one's own.
CommandWords with_words_added(const CommandWords& launcher, const CommandWords& more) {
  CommandWords out;
  bool trains = false;
  const auto end_program = [&] {
    if (trains) out.insert(out.end(), more.begin(), more.end());
    return std::exchange(trains, false);
  };
  for (std::size_t i = 0; i < launcher.size(); ++i) {
    if (launcher[i] == ":" && !end_program()) return {};
    trains |= i > 0 && launcher[i] == "train" && launcher[i - 1].ends_with("nemocube");
    out.push_back(launcher[i]);
  }
  return end_program() ? out : CommandWords{};
}

/// mpirun of Open MPI 5 becomes prterun, with the same arguments, and in the folder by which mpirun was
/// called.
CommandWords as_called(CommandWords launcher) {
  constexpr std::string_view runtime = "prterun";
  std::string& name = launcher[0];
  if (name == runtime || name.ends_with("/prterun"))
    name.replace(name.size() - runtime.size(), runtime.size(), "mpirun");
  return launcher;
}

int parent_of(const std::string& process) {
  std::ifstream status("/proc/" + process + "/status");
  constexpr std::string_view key = "PPid:";
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key)) return std::stoi(line.substr(key.size()));
  return 0;
}

}  // namespace

std::string shell_word(const std::string& text) {
  constexpr auto plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./,:=@%";  // not special to a shell
  if (!text.empty() && text.find_first_not_of(plain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string shell_line(const CommandWords& words) {
  std::string line;
  for (const std::string& word : words) line += cat(line.empty() ? "" : " ", shell_word(word));
  return line;
}

std::string resume_command(const CommandWords& program, const CommandWords& more, int ranks,
                           std::span<const CommandWords> ancestors) {
  if (ranks == 1) {
    CommandWords words = program;
    words.insert(words.end(), more.begin(), more.end());
    return shell_line(words);
  }
  const auto launcher = std::ranges::find_if(ancestors, is_launcher);
  if (launcher != ancestors.end()) {
    const CommandWords called = as_called(*launcher);
    const CommandWords words = more.empty() ? called : with_words_added(called, more);
    if (!words.empty()) return shell_line(words);
  }
  return cat("start it again as before, on ", ranks, " ranks",
             more.empty() ? "" : cat(", with ", shell_line(more)));
}

std::string program_word() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string word;
  std::getline(file, word, '\0');
  return word.find('/') == std::string::npos ? "nemocube" : word;
}

std::vector<CommandWords> command_lines_of_ancestors() {
  constexpr std::size_t most = 16;
  std::vector<CommandWords> all;
  for (int id = ::getppid(); id > 1 && all.size() < most; id = parent_of(std::to_string(id))) {
    std::ifstream file(cat("/proc/", id, "/cmdline"), std::ios::binary);
    CommandWords& words = all.emplace_back();
    for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  }
  return all;
}

}  // namespace nemocube
