#include "ops/rmsnorm/rmsnorm_kernels.h"
#include "ops/row_norm_cpu.h"

namespace nemocube::cpu {

void rmsnorm_forward(const NormForward& o) {
  o.offset == 0 ? row_norm::forward<NormForm::plain>("rmsnorm", o)
                : row_norm::forward<NormForm::offset>("rmsnorm", o);
}

void rmsnorm_backward(const NormBackward& o) {
  o.offset == 0 ? row_norm::backward<NormForm::plain>("rmsnorm", o)
                : row_norm::backward<NormForm::offset>("rmsnorm", o);
}

}  // namespace nemocube::cpu
