#pragma once
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

/// Errors. A mistake of the user (recipe, file, shape, grid size, damaged input) throws `Error`; the command
/// line prints its text with the rank in front and exits with code 2. A broken promise inside the program
/// throws `std::logic_error` (exit code 70). Texts name the thing, what was wanted and what was found:
///     fail(path, ": tensor '", name, "' has shape ", have, ", the model wants ", want);
namespace nemocube {

/// The one exception type for user mistakes.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Concatenates its arguments with operator<<.
template <class... Parts>
std::string cat(Parts&&... parts) {
  std::ostringstream out;
  (out << ... << std::forward<Parts>(parts));
  return std::move(out).str();
}

/// Throws Error with the concatenated parts.
template <class... Parts>
[[noreturn]] void fail(Parts&&... parts) {
  throw Error(cat(std::forward<Parts>(parts)...));
}

/// Throws Error with the concatenated parts unless `ok`. The parts are only formatted on failure.
template <class... Parts>
void require(bool ok, Parts&&... parts) {
  if (!ok) [[unlikely]]
    fail(std::forward<Parts>(parts)...);
}

/// Throws std::logic_error unless `ok`: for promises between parts of the program, not for user input.
template <class... Parts>
void expect(bool ok, Parts&&... parts) {
  if (!ok) [[unlikely]]
    throw std::logic_error(cat("internal error: ", std::forward<Parts>(parts)...));
}

}  // namespace nemocube
