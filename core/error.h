#pragma once
#include <cstddef>
#include <initializer_list>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

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

/// One argument of a message: text, or anything with operator<<. A part refers to its argument, so it must
/// not outlive the expression. One function joins the parts of all messages. With plain templates the
/// compiler would make one function for every combination of argument types.
class MessagePart {
 public:
  MessagePart(std::string_view text) : object_(text.data()), size_(text.size()) {}
  template <class T>
  requires(!std::is_convertible_v<const T&, std::string_view>) MessagePart(const T& value)
      : object_(&value), write_(&write<T>) {}

  friend std::ostream& operator<<(std::ostream& out, const MessagePart& part);

 private:
  template <class T>
  static void write(std::ostream& out, const void* value) {
    out << *static_cast<const T*>(value);
  }
  const void* object_;
  std::size_t size_ = 0;
  void (*write_)(std::ostream&, const void*) = nullptr;  // null for text
};

std::string join(std::initializer_list<MessagePart> parts);
[[noreturn]] void throw_error(std::initializer_list<MessagePart> parts);
[[noreturn]] void throw_logic_error(std::initializer_list<MessagePart> parts);

/// Concatenates its arguments with operator<<.
template <class... Parts>
std::string cat(const Parts&... parts) {
  return join({MessagePart(parts)...});
}

/// Throws Error with the concatenated parts.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw_error({MessagePart(parts)...});
}

/// Throws Error with the concatenated parts unless `ok`. The parts are only formatted on failure.
template <class... Parts>
void require(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    throw_error({MessagePart(parts)...});
}

/// Throws std::logic_error unless `ok`: for promises between parts of the program, not for user input.
template <class... Parts>
void expect(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    throw_logic_error({MessagePart(parts)...});
}

}  // namespace nemocube
