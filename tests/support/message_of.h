#pragma once
#include <string>

#include "core/error.h"

namespace nemocube::testing {

/// The text of the exception that `fn()` throws; "no error" when it throws none.
template <class Exception = Error, class Fn>
std::string message_of(const Fn& fn) {
  try {
    fn();
  } catch (const Exception& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace nemocube::testing
