#pragma once
#include "core/kernel.h"

/// The kernel behind core/add.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {
void add_elements(const Tensor& y, const Tensor& a, const Tensor& b);
}
inline const Kernel<cpu::add_elements> add_elements_kernel("core/add_elements");

}  // namespace nemocube
