#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "data/chat/jinja/interpreter.h"

namespace nemocube::jinja {

/// A parsed template. Cheap to copy; many threads may render one at once.
class Template {
 public:
  /// `name` names the template in messages. Throws Error naming line and column of a mistake.
  Template(std::string name, std::string_view source);

  bool has_generation() const;  ///< a {% generation %} block

  /// Throws Error naming line and column of the operation that fails or exceeds a limit.
  Output render(Interpreter::Context context, const Limits& limits, Interpreter::Time now) const;

 private:
  struct Parsed;
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace nemocube::jinja
