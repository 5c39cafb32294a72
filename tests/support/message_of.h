#pragma once
#include <string>

#include "core/error.h"

namespace nemocube::testing {

/// The text of the Error that `fn()` throws; "no error" when it throws none.
std::string message_of(const auto& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace nemocube::testing
