#include "ops/layernorm/layernorm_kernels.h"
#include "ops/row_norm.cuh"

namespace nemocube::cuda {
namespace {

void forward(const NormForward& o) {
  row_norm::forward<NormForm::centred>("layernorm", "layernorm forward", o);
}

void backward(const NormBackward& o) {
  row_norm::backward<NormForm::centred>("layernorm", "layernorm backward", o);
}

const Provide provided[] = {{layernorm_forward, forward}, {layernorm_backward, backward}};

}  // namespace
}  // namespace nemocube::cuda
