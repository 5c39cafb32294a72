#include "ops/rmsnorm/rmsnorm_kernels.h"
#include "ops/row_norm.cuh"

namespace nemocube::cuda {
namespace {

void forward(const NormForward& o) {
  switch (form_of(o.weight, o.offset)) {
    case NormForm::offset:
      return row_norm::forward<NormForm::offset>("rmsnorm", "rmsnorm forward", o);
    case NormForm::unweighted:
      return row_norm::forward<NormForm::unweighted>("rmsnorm", "rmsnorm forward, no weight", o);
    default:
      return row_norm::forward<NormForm::plain>("rmsnorm", "rmsnorm forward", o);
  }
}

void backward(const NormBackward& o) {
  switch (form_of(o.weight, o.offset)) {
    case NormForm::offset:
      return row_norm::backward<NormForm::offset>("rmsnorm", "rmsnorm backward", o);
    case NormForm::unweighted:
      return row_norm::backward<NormForm::unweighted>("rmsnorm", "rmsnorm backward, no weight", o);
    default:
      return row_norm::backward<NormForm::plain>("rmsnorm", "rmsnorm backward", o);
  }
}

const Provide provided[] = {{rmsnorm_forward, forward}, {rmsnorm_backward, backward}};

}  // namespace
}  // namespace nemocube::cuda
