#include "data/megatron/index_memory.h"

#include <algorithm>

#include "core/error.h"
#include "core/memory_limit.h"

namespace nemocube {

void require_index_memory(const std::string& what, double bytes) {
  constexpr double always_there = 64e6;
  if (bytes <= always_there) return;
  const MemoryLimit limit = memory_limit();
  const std::int64_t free = std::max<std::int64_t>(limit.bytes - limit.used, 0);
  require(bytes <= static_cast<double>(free), what, ": the index of the samples takes ",
          bytes_text(static_cast<std::int64_t>(std::min(bytes, 9e18))), " of memory, and ", bytes_text(free),
          " are free (", limit.name, "); want fewer samples: num_train_samples and the like, or max_steps");
}

}  // namespace nemocube
