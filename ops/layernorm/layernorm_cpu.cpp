#include "ops/layernorm/layernorm_kernels.h"
#include "ops/row_norm_cpu.h"

namespace nemocube::cpu {

void layernorm_forward(const NormForward& o) { row_norm::forward<NormForm::centred>("layernorm", o); }

void layernorm_backward(const NormBackward& o) { row_norm::backward<NormForm::centred>("layernorm", o); }

}  // namespace nemocube::cpu
