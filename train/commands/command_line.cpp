#include "train/commands/command_line.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "core/quote.h"
#include "parallel/comm/job/launch.h"
#include "train/recipe/words.h"

namespace nemocube {

namespace {

/// Whether the whole of `text` is a value of T, which it then is. Not "010", which CLI11 takes for an octal
/// number.
template <class T>
bool parse_whole(std::string_view text, T& value) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  if (std::is_integral_v<T> && digits.size() > 1 && digits[0] == '0') return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// Launch::command of a subcommand that was parsed.
std::string command_of(const CLI::App& app) {
  std::string name = app.get_name();
  for (const CLI::App* parent = app.get_parent(); parent && parent->get_parent();
       parent = parent->get_parent())
    name = cat(parent->get_name(), " ", name);
  std::string text = name + "\n";
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || option->get_positional() || option->get_lnames().empty()) continue;
    const std::string& option_name = option->get_lnames()[0];
    if (option_name == "set") continue;
    for (const std::string& value : option->results())
      text += cat("--", option_name, ": ", excerpt(value), "\n");
  }
  return text;
}

}  // namespace

// Releases of CLI11 have other words for the same fault, so the checks have their own.
Check whole_number() {
  return {[](const std::string& text) -> std::string {
            std::int64_t value = 0;
            if (parse_whole(text, value) && value >= 0) return "";
            return cat("want an integer from 0 to 2^63 - 1, got '", text, "'");
          },
          ""};
}

Check number() {
  return {[](const std::string& text) -> std::string {
            double value = 0;
            return parse_whole(text, value) ? "" : cat("want a number, got '", text, "'");
          },
          "NUMBER"};
}

Check in_range(int least, int most) {
  return {[least, most](const std::string& text) -> std::string {
            std::int64_t value = 0;
            if (parse_whole(text, value) && value >= least && value <= most) return "";
            return cat("want an integer from ", least, " to ", most, ", got '", text, "'");
          },
          cat("INT in [", least, " - ", most, "]")};
}

Option* Option::required() {
  option_->required();
  return this;
}

Option* Option::capture_default_str() {
  option_->capture_default_str();
  return this;
}

Option* Option::check(const Check& check) {
  option_->check(
      CLI::Validator([fault = check.fault](std::string& text) { return fault(text); }, check.name));
  return this;
}

Option* Option::excludes(Option* other) {
  option_->excludes(other->option_);
  return this;
}

Option* Option::needs(Option* other) {
  option_->needs(other->option_);
  return this;
}

Option* Option::allow_extra_args(bool allowed) {
  option_->allow_extra_args(allowed);
  return this;
}

std::size_t Option::count() const { return option_->count(); }

Command::Command(const std::string& about) : app_(std::make_shared<CLI::App>(about)) {}

Command* Command::add_subcommand(const std::string& name, const std::string& about) {
  // The application owns its subcommands; the pointer shares the ownership of the application.
  commands_.push_back(Command(std::shared_ptr<CLI::App>(app_, app_->add_subcommand(name, about))));
  return &commands_.back();
}

template <class T>
Option* Command::add_option(const std::string& name, T& target, const std::string& help) {
  return keep(app_->add_option(name, target, help));
}

Option* Command::add_flag(const std::string& name, bool& target, const std::string& help) {
  return keep(app_->add_flag(name, target, help));
}

Option* Command::set_version_flag(const std::string& name, const std::string& text) {
  return keep(app_->set_version_flag(name, text));
}

void Command::footer(const std::string& text) { app_->footer(text); }
void Command::require_subcommand(int count) { app_->require_subcommand(count); }
void Command::fallthrough() { app_->fallthrough(); }
void Command::callback(std::function<void()> work) {
  callback_of_ranks([name = app_->get_name(), work = std::move(work)](const Launch& launch) {
    require(launch.size == 1, "started on ", launch.size, " ranks, but in this version '", name,
            "' runs on one; start it without mpirun");
    work();
  });
}
void Command::callback_of_ranks(std::function<void(const Launch&)> work) {
  app_->callback([app = app_.get(), work = std::move(work)] {
    Launch launch = read_launch();
    launch.command = command_of(*app);
    work(launch);
  });
}
void Command::parse_complete_callback(std::function<void()> fn) {
  app_->parse_complete_callback(std::move(fn));
}

// Before parsing, because CLI11 would only say that a subcommand is required.
void Command::refuse_unknown_subcommand(int argc, char** argv) const {
  if (argc < 2 || argv[1][0] == '-') return;
  std::string known;
  for (const CLI::App* sub : app_->get_subcommands([](const CLI::App*) { return true; })) {
    if (sub->check_name(argv[1])) return;
    known += (known.empty() ? "" : ", ") + sub->get_name();
  }
  fail("no subcommand '", argv[1], "' (there are: ", known, ")");
}

// For each unknown option that resembles one of the subcommand given: "; the nearest option to --x is --y".
std::string Command::nearest_options() const {
  std::vector<std::string> known;
  for (const CLI::App* app = app_.get(); app != nullptr;) {
    for (const CLI::Option* option : app->get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    const auto subcommands = app->get_subcommands();
    app = subcommands.empty() ? nullptr : subcommands[0];
  }
  std::string text;
  for (const std::string& word : app_->remaining(true)) {
    if (!word.starts_with("--") || word.size() == 2) continue;
    const std::string name = word.substr(0, word.find('='));
    const std::string guess = recipe::nearest(name, known);
    if (recipe::edit_distance(name, guess) <= name.size() / 3)
      text += cat("; the nearest option to ", excerpt(name), " is ", guess);
  }
  return text;
}

void Command::parse(int argc, char** argv) {
  refuse_unknown_subcommand(argc, argv);
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ExtrasError& e) {
    fail(e.what(), nearest_options(), "\n  Run with --help for more information.");
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) fail(e.what(), "\n  Run with --help for more information.");
    app_->exit(e);  // --help and --version
  }
}

template Option* Command::add_option(const std::string&, int&, const std::string&);
template Option* Command::add_option(const std::string&, std::int64_t&, const std::string&);
template Option* Command::add_option(const std::string&, std::uint64_t&, const std::string&);
template Option* Command::add_option(const std::string&, double&, const std::string&);
template Option* Command::add_option(const std::string&, std::optional<std::int64_t>&, const std::string&);
template Option* Command::add_option(const std::string&, std::optional<double>&, const std::string&);
template Option* Command::add_option(const std::string&, std::optional<std::string>&, const std::string&);
template Option* Command::add_option(const std::string&, std::string&, const std::string&);
template Option* Command::add_option(const std::string&, std::vector<std::string>&, const std::string&);
template Option* Command::add_option(const std::string&, std::filesystem::path&, const std::string&);

}  // namespace nemocube
