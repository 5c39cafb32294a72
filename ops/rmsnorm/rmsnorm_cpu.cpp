#include "ops/rmsnorm/rmsnorm_kernels.h"
#include "ops/row_norm_cpu.h"

namespace nemocube::cpu {

void rmsnorm_forward(const NormForward& o) {
  switch (form_of(o.weight, o.offset)) {
    case NormForm::offset:
      return row_norm::forward<NormForm::offset>("rmsnorm", o);
    case NormForm::unweighted:
      return row_norm::forward<NormForm::unweighted>("rmsnorm", o);
    default:
      return row_norm::forward<NormForm::plain>("rmsnorm", o);
  }
}

void rmsnorm_backward(const NormBackward& o) {
  switch (form_of(o.weight, o.offset)) {
    case NormForm::offset:
      return row_norm::backward<NormForm::offset>("rmsnorm", o);
    case NormForm::unweighted:
      return row_norm::backward<NormForm::unweighted>("rmsnorm", o);
    default:
      return row_norm::backward<NormForm::plain>("rmsnorm", o);
  }
}

}  // namespace nemocube::cpu
