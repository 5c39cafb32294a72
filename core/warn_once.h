#pragma once
#include <string>
#include <utility>

#include "core/log.h"

namespace nemocube {

/// True the first time that this process asks for `subject`. Many threads may ask at once.
bool first_mention(const std::string& subject);

/// log_warning(), unless this process has warned of `subject` before.
template <class... Parts>
void warn_once(const std::string& subject, Parts&&... parts) {
  if (first_mention(subject)) log_warning(std::forward<Parts>(parts)...);
}

}  // namespace nemocube
