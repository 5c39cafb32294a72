#include "ops/rmsnorm/rmsnorm_kernels.h"
#include "ops/row_norm.cuh"

namespace nemocube::cuda {
namespace {

void forward(const NormForward& o) {
  o.offset == 0 ? row_norm::forward<NormForm::plain>("rmsnorm", "rmsnorm forward", o)
                : row_norm::forward<NormForm::offset>("rmsnorm", "rmsnorm forward", o);
}

void backward(const NormBackward& o) {
  o.offset == 0 ? row_norm::backward<NormForm::plain>("rmsnorm", "rmsnorm backward", o)
                : row_norm::backward<NormForm::offset>("rmsnorm", "rmsnorm backward", o);
}

const Provide provided[] = {{rmsnorm_forward, forward}, {rmsnorm_backward, backward}};

}  // namespace
}  // namespace nemocube::cuda
