#include "core/host_name.h"

#include <unistd.h>

#include <array>

namespace nemocube {

std::string host_name(const std::string& unknown) {
  std::array<char, 256> name{};
  const bool known = ::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0';
  return known ? name.data() : unknown;
}

}  // namespace nemocube
