#include "core/error.h"

#include <sstream>
#include <utility>

namespace nemocube {

std::ostream& operator<<(std::ostream& out, const MessagePart& part) {
  if (!part.write_) return out << std::string_view(static_cast<const char*>(part.object_), part.size_);
  part.write_(out, part.object_);
  return out;
}

std::string join(std::initializer_list<MessagePart> parts) {
  std::ostringstream out;
  for (const MessagePart& part : parts) out << part;
  return std::move(out).str();
}

void throw_error(std::initializer_list<MessagePart> parts) { throw Error(join(parts)); }

void throw_logic_error(std::initializer_list<MessagePart> parts) {
  throw std::logic_error("internal error: " + join(parts));
}

}  // namespace nemocube
