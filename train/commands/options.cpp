#include "core/error.h"
#include "train/commands/commands.h"

namespace nemocube {

DType parse_weight_dtype(const std::string& name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    if (cat(dtype) == name) return dtype;
  fail("--dtype: want f32, bf16 or f64, got '", name, "'");
}

}  // namespace nemocube
