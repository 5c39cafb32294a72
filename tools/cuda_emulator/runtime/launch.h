#pragma once
#include <cuda_runtime_api.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "machine/launch.h"
#include "runtime/registration.h"
#include "runtime/scheduler.h"

namespace emulator {

/// A launch of a kernel with its arguments.
class KernelWork : public Work {
 public:
  int run(OperationId operation) override;
  std::string name() const override { return "kernel " + kernel->readable; }

  RegisteredKernel* registered = nullptr;
  const Kernel* kernel = nullptr;
  LaunchShape shape;
  std::vector<std::byte> parameters;
  int device = 0;
  /// Pointers to the arguments in `parameters`, as cudaGraphKernelNodeGetParams gives them.
  std::vector<void*> argument_pointers;
};

/// Checks a launch and copies its arguments. Throws ApiError with the error of the launch (cudaErrorInvalidConfiguration ...).
std::shared_ptr<KernelWork> make_kernel_work(const void* function, dim3 grid, dim3 block, void** arguments,
                                             std::size_t dynamic_shared,
                                             std::span<const cudaLaunchAttribute> attributes, int device);

}  // namespace emulator
