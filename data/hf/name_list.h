#pragma once
#include <string>

#include "core/error.h"

namespace nemocube {

/// A list of tensors with one kind of problem, for a message. Counts all and names the first ten.
class NameList {
 public:
  explicit NameList(std::string what) : what_(std::move(what)) {}
  void add(const std::string& text) {
    if (++count_ <= 10) list_ += (count_ == 1 ? "" : ", ") + text;
  }
  /// "\n  2 missing: a, b"; empty for an empty list.
  std::string text() const {
    if (count_ == 0) return "";
    return cat("\n  ", count_, ' ', what_, ": ", list_, count_ > 10 ? ", ..." : "");
  }

 private:
  std::string what_, list_;
  int count_ = 0;
};

}  // namespace nemocube
