#include "core/warn_once.h"

#include <mutex>
#include <set>

namespace nemocube {

bool first_mention(const std::string& subject) {
  static std::mutex mutex;
  static std::set<std::string> mentioned;
  const std::lock_guard lock(mutex);
  return mentioned.insert(subject).second;
}

}  // namespace nemocube
