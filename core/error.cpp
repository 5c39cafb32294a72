#include "core/error.h"

#include <sstream>
#include <utility>

namespace nemocube {

std::ostream& operator<<(std::ostream& out, const Part& part) {
  if (!part.write_) return out << std::string_view(static_cast<const char*>(part.object_), part.size_);
  part.write_(out, part.object_);
  return out;
}

std::string join(std::initializer_list<Part> parts) {
  std::ostringstream out;
  for (const Part& part : parts) out << part;
  return std::move(out).str();
}

void throw_error(std::initializer_list<Part> parts) { throw Error(join(parts)); }

void throw_logic_error(std::initializer_list<Part> parts) {
  throw std::logic_error("internal error: " + join(parts));
}

}  // namespace nemocube
