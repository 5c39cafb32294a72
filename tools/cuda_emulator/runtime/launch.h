#pragma once
#include <cuda_runtime_api.h>

#include <functional>
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
  timeline::Load::Kind load() const override { return timeline::Load::Kind::kernel; }
  bool launches_dependents() const override { return kernel->launches_dependents; }
  bool begins_early() const override { return programmatic; }
  void run_early(OperationId early, OperationId later) override;
  void overlap(std::function<void()> other) override { overlap_ = std::move(other); }

  RegisteredKernel* registered = nullptr;
  const Kernel* kernel = nullptr;
  LaunchShape shape;
  bool programmatic = false;  ///< launched with programmatic stream serialization
  std::vector<std::byte> parameters;
  int device = 0;
  /// Pointers to the arguments in `parameters`, as cudaGraphKernelNodeGetParams gives them.
  std::vector<void*> argument_pointers;

 private:
  template <class F>
  int guarded(F&& f);
  std::shared_ptr<Launch> begin(OperationId operation) const;
  std::shared_ptr<Launch> launch_;  ///< between run_early and run
  std::function<void()> overlap_;
};

/// Checks a launch and copies its arguments. Throws ApiError with the error of the launch (cudaErrorInvalidConfiguration ...).
std::shared_ptr<KernelWork> make_kernel_work(const void* function, dim3 grid, dim3 block, void** arguments,
                                             std::size_t dynamic_shared,
                                             std::span<const cudaLaunchAttribute> attributes, int device);

}  // namespace emulator
