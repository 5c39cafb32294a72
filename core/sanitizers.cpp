#include "core/sanitizers.h"

namespace nemocube {

bool has_address_sanitizer() {
#if defined(__SANITIZE_ADDRESS__)
  return true;
#else
  return false;
#endif
}

}  // namespace nemocube
