#include "data/chat/jinja/budget.h"

namespace nemocube::jinja {

void Budget::take_large_memory() {
  if (memory_ > limits_.memory) raise("the template makes values of more than ", limits_.memory, " bytes");
  if (large_.owns_lock()) return;
  static std::recursive_mutex one_at_a_time;
  large_ = std::unique_lock(one_at_a_time);
}

}  // namespace nemocube::jinja
