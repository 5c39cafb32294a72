#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

/// The command line: the part of CLI11 that this program uses, under CLI11's names. CLI11 is a large header
/// of inline functions, which took seven seconds to compile in every file; only command_line.cpp includes it.
namespace nemocube {

struct Launch;  // parallel/comm/job/launch.h

/// A condition on the text of an option's value: `fault` returns the fault as text, or "".
struct Check {
  std::function<std::string(const std::string& text)> fault;
  std::string name;  ///< shown by --help
};
Check whole_number();                 ///< 0, 1, ..., 2^63 - 1; without this check CLI11 clamps larger numbers
Check number();                       ///< any number
Check in_range(int least, int most);  ///< an integer from least to most

/// A named option or a positional argument. Made by Command, which owns it.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option* required();
  Option* capture_default_str();           ///< --help shows the value that the target has now
  Option* check(const Check& check);       ///< refuses values that fail the check
  Option* excludes(Option* other);         ///< may not be given together with `other`
  Option* needs(Option* other);            ///< may be given only together with `other`
  Option* allow_extra_args(bool allowed);  ///< whether a list option takes several values at once
  std::size_t count() const;               ///< how often the option was given

 private:
  CLI::Option* option_;
};

/// The program or one of its subcommands. A Command owns its subcommands.
class Command {
 public:
  explicit Command(const std::string& about);
  Command* add_subcommand(const std::string& name, const std::string& about);
  /// The value goes to `target`, which must live until parse() has returned. `name` without dashes is
  /// positional. T is one of the types that command_line.cpp lists at its end.
  template <class T>
  Option* add_option(const std::string& name, T& target, const std::string& help = "");
  Option* add_flag(const std::string& name, bool& target, const std::string& help = "");
  Option* set_version_flag(const std::string& name, const std::string& text);
  void footer(const std::string& text);  ///< what --help prints last
  void require_subcommand(int count);
  void fallthrough();  ///< options may also follow a subcommand's own
  /// The work of the command. Refused with an Error where a launcher has started several ranks.
  void callback(std::function<void()> work);
  /// The work of a command that may run on several ranks; all ranks call `work`.
  void callback_of_ranks(std::function<void(const Launch&)> work);
  void parse_complete_callback(std::function<void()> fn);  ///< called after parsing, before any work

  /// Parses the arguments, then does the work of the named subcommands. --help and --version are printed.
  /// Throws Error for arguments that cannot be parsed.
  void parse(int argc, char** argv);

 private:
  explicit Command(std::shared_ptr<CLI::App> app) : app_(std::move(app)) {}
  Option* keep(CLI::Option* option) { return &options_.emplace_back(option); }
  void refuse_unknown_subcommand(int argc, char** argv) const;
  std::string nearest_options() const;

  std::shared_ptr<CLI::App> app_;
  std::deque<Option> options_;
  std::deque<Command> commands_;
};

}  // namespace nemocube
