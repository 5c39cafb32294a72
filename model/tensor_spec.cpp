#include "model/tensor_spec.h"

#include <array>

namespace nemocube {

std::string_view name_of(TensorStyle style) {
  constexpr std::array<std::string_view, 7> names{"replicated",     "colwise",           "rowwise",
                                                  "vocab_parallel", "sequence_parallel", "expert_colwise",
                                                  "expert_rowwise"};
  return names[static_cast<std::size_t>(style)];
}

TensorCount count_tensors(std::span<const TensorSpec> specs) {
  TensorCount count;
  for (const TensorSpec& spec : specs) {
    count.tensors += spec.experts ? spec.shape[0] : 1;
    const std::int64_t before = count.elements, more = spec.shape.numel();
    require(!__builtin_add_overflow(before, more, &count.elements), "tensor '", spec.name, "' of shape ",
            spec.shape, " after ", before, " other parameters: their number does not fit in 64 bits");
    if (spec.buffer) count.buffers += more;
    if (spec.frozen && !spec.buffer) count.frozen += more;
  }
  return count;
}

}  // namespace nemocube
