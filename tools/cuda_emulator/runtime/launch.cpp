#include "runtime/launch.h"

#include <cstring>
#include <mutex>

#include "counters/counters.h"
#include "machine/device.h"
#include "machine/random.h"
#include "machine/report.h"
#include "machine/resources.h"
#include "machine/standstill.h"
#include "runtime/api.h"
#include "runtime/event.h"
#include "runtime/occupancy.h"
#include "timeline/recorder.h"

namespace emulator {
namespace {

[[noreturn]] void refuse(const Kernel& kernel, cudaError_t error, const std::string& why) {
  report(Severity::note, "launch-refused", "launch of " + kernel.readable + " refused: " + why);
  throw ApiError{error};
}

std::string text(dim3 d) {
  return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")";
}

void check_shape(const Kernel& kernel, dim3 grid, dim3 block) {
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > h100::threads_per_block || block.x > 1024 || block.y > 1024 || block.z > 64) {
    refuse(kernel, cudaErrorInvalidConfiguration, "block " + text(block));
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fff'ffff || grid.y > 65535 || grid.z > 65535) {
    refuse(kernel, cudaErrorInvalidConfiguration, "grid " + text(grid));
  }
  const ptx::Dim3 required = kernel.required_threads, most = kernel.max_threads;
  if (required.x && (block.x != required.x || block.y != required.y || block.z != required.z)) {
    refuse(kernel, cudaErrorInvalidConfiguration, "block " + text(block) + " is not the one of .reqntid");
  }
  if (most.x && threads > std::uint64_t{most.x} * most.y * most.z) {
    refuse(kernel, cudaErrorLaunchOutOfResources,
           std::to_string(threads) + " threads a block, __launch_bounds__ allows " +
               std::to_string(std::uint64_t{most.x} * most.y * most.z));
  }
  // ptxas keeps to 65,536 registers a block only where it knows the block's size. 255 is the most that a thread can have.
  if (!most.x && !required.x && threads * 255 > h100::registers_per_block) {
    const std::uint64_t registers = resources_of(kernel).registers;
    if (registers * threads > h100::registers_per_block) {
      refuse(kernel, cudaErrorLaunchOutOfResources,
             std::to_string(threads) + " threads of " + std::to_string(registers) + " registers");
    }
  }
}

// ptxas for compute 9.0 lets more than 48 KiB of static shared memory pass, which no launch can have.
void check_shared(const Kernel& kernel, const RegisteredKernel& registered, std::size_t dynamic_shared) {
  if (kernel.static_shared > h100::shared_per_block) {
    refuse(kernel, cudaErrorInvalidValue,
           std::to_string(kernel.static_shared) + " bytes of static shared memory, " +
               std::to_string(h100::shared_per_block) + " allowed; more must be dynamic");
  }
  const std::size_t allowed = registered.max_dynamic_shared
                                  ? static_cast<std::size_t>(*registered.max_dynamic_shared)
                                  : h100::shared_per_block - kernel.static_shared;
  if (dynamic_shared <= allowed) return;
  refuse(kernel, cudaErrorInvalidValue,
         std::to_string(dynamic_shared) + " bytes of dynamic shared memory, " + std::to_string(allowed) +
             " allowed (cudaFuncAttributeMaxDynamicSharedMemorySize)");
}

[[noreturn]] void refuse_cluster(const Kernel& kernel) {
  report(Severity::error, "not-supported",
         "launch of " + kernel.readable + " with a cluster of several blocks");
  throw ApiError{cudaErrorNotSupported};
}

std::uint64_t blocks_of_cluster(const auto& cluster) {
  return std::uint64_t{cluster.x} * cluster.y * cluster.z;
}

bool is_cluster_size(const cudaLaunchAttribute& attribute) {
  return attribute.id == cudaLaunchAttributeClusterDimension ||
         attribute.id == cudaLaunchAttributePreferredClusterDimension;
}

// The kernel has its cluster by __cluster_dims__, the launch by an attribute.
void check_clusters(const Kernel& kernel, std::span<const cudaLaunchAttribute> attributes) {
  if (kernel.required_cluster.x && blocks_of_cluster(kernel.required_cluster) > 1) refuse_cluster(kernel);
  bool given = kernel.required_cluster.x != 0;
  for (const cudaLaunchAttribute& attribute : attributes) {
    if (!is_cluster_size(attribute)) continue;
    if (blocks_of_cluster(attribute.val.clusterDim) > 1) refuse_cluster(kernel);
    given = true;
  }
  if (kernel.explicit_cluster && !given) {
    refuse(kernel, cudaErrorInvalidClusterSize,
           "__cluster_dims__() without a size, and the launch gives none");
  }
}

void apply(const cudaLaunchAttribute& attribute, KernelWork& work) {
  switch (attribute.id) {
    case cudaLaunchAttributeCooperative:
      work.shape.cooperative = attribute.val.cooperative != 0;
      return;
    case cudaLaunchAttributeProgrammaticStreamSerialization:
      work.programmatic = attribute.val.programmaticStreamSerializationAllowed != 0;
      return;
    default:
      return;  // hints
  }
}

/// What the timeline knows of a kernel.
timeline::Load load_of(const LaunchCounts& counts) {
  timeline::Load load;
  load.kind = timeline::Load::Kind::kernel;
  load.bytes = static_cast<double>(counts.dram_bytes);
  load.l2_bytes = 32 * static_cast<double>(counts.sectors);
  load.tensor_multiply_adds = static_cast<double>(counts.tensor_multiply_adds);
  load.multiply_adds = static_cast<double>(counts.multiply_adds);
  load.wavefronts = static_cast<double>(counts.wavefronts);
  load.instructions = static_cast<double>(counts.warp_instructions);
  load.blocks = static_cast<double>(counts.blocks);
  load.resident = static_cast<double>(counts.resident_blocks);
  return load;
}

}  // namespace

std::shared_ptr<Launch> KernelWork::begin(OperationId operation) const {
  static std::once_flag signals;
  std::call_once(signals, answer_signals);
  return std::make_shared<Launch>(*kernel, shape, parameters, device, operation,
                                  base_seed() * 0x9e3779b97f4a7c15 + operation);
}

/// f(), or the error that stands for its exception.
template <class F>
int KernelWork::guarded(F&& f) {
  try {
    return f();
  } catch (const KernelFault& fault) {
    return fault.error;
  } catch (const std::exception& e) {
    report(Severity::error, "launch", kernel->readable + ": " + e.what());
    return cudaErrorLaunchFailure;
  }
}

int KernelWork::run(OperationId operation) {
  return guarded([&] {
    std::shared_ptr<Launch> launch = std::exchange(launch_, nullptr);
    if (!launch) launch = begin(operation);
    if (const std::function<void()> other = std::exchange(overlap_, nullptr)) {
      std::uint64_t random = launch->seed();
      if (launch->run_blocks(next_random(random) % (launch->blocks() + 1))) other();
    }
    const int error = launch->run();
    if (timeline::recording()) timeline::set_load(load_of(counts_of_last_launch()));
    return error;
  });
}

/// An exception leaves no launch behind: run() meets the cause again.
void KernelWork::run_early(OperationId early, OperationId later) {
  guarded([&] {
    std::shared_ptr<Launch> launch = begin(early);
    launch->run_early(later);
    launch_ = std::move(launch);
    return 0;
  });
}

std::shared_ptr<KernelWork> make_kernel_work(const void* function, dim3 grid, dim3 block, void** arguments,
                                             std::size_t dynamic_shared,
                                             std::span<const cudaLaunchAttribute> attributes, int device) {
  RegisteredKernel* const registered = find_kernel(function);
  require(registered, cudaErrorInvalidDeviceFunction);
  const Kernel* const kernel = registered->on(device);
  if (!kernel) {
    report(Severity::error, "no-kernel", "no PTX of kernel " + registered->name);
    throw ApiError{cudaErrorInvalidDeviceFunction};
  }
  auto work = std::make_shared<KernelWork>();
  work->registered = registered;
  work->kernel = kernel;
  work->device = device;
  work->shape.grid = {grid.x, grid.y, grid.z};
  work->shape.block = {block.x, block.y, block.z};
  check_shape(*kernel, grid, block);
  check_shared(*kernel, *registered, dynamic_shared);
  check_clusters(*kernel, attributes);
  work->shape.dynamic_shared = static_cast<std::uint32_t>(dynamic_shared);
  for (const cudaLaunchAttribute& attribute : attributes) apply(attribute, *work);
  if (work->shape.cooperative) {
    const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
    const std::uint64_t resident =
        std::uint64_t{h100::multiprocessors} *
        static_cast<std::uint64_t>(active_blocks(
            *registered, *kernel, static_cast<int>(block.x * block.y * block.z), dynamic_shared));
    if (blocks > resident) {
      refuse(*kernel, cudaErrorCooperativeLaunchTooLarge,
             std::to_string(blocks) + " blocks, " + std::to_string(resident) + " can be resident");
    }
  }
  work->parameters.resize(kernel->parameter_bytes);
  require(arguments || kernel->parameters.empty());
  for (std::size_t i = 0; i < kernel->parameters.size(); ++i) {
    const ParameterPlace place = kernel->parameters[i];
    require(arguments[i]);
    std::memcpy(work->parameters.data() + place.offset, arguments[i], place.bytes);
    work->argument_pointers.push_back(work->parameters.data() + place.offset);
  }
  return work;
}

}  // namespace emulator

using namespace emulator;

namespace {

std::string name_of(const void* function) {
  RegisteredKernel* const registered = find_kernel(function);
  if (!registered) return "a function that is no kernel";
  try {
    if (const Kernel* const kernel = registered->on(current_device())) return kernel->readable;
  } catch (...) {  // its module cannot be loaded, which was the launch's error
  }
  return registered->name;
}

void launch(const void* function, dim3 grid, dim3 block, void** arguments, std::size_t dynamic_shared,
            cudaStream_t handle, std::span<const cudaLaunchAttribute> attributes) {
  Stream& stream = stream_of(handle);
  submit(stream,
         make_kernel_work(function, grid, block, arguments, dynamic_shared, attributes, stream.device));
  // Events that the grid may trigger before it ends: its end is always late enough.
  for (const cudaLaunchAttribute& attribute : attributes) {
    if (attribute.id == cudaLaunchAttributeProgrammaticEvent)
      record_event(attribute.val.programmaticEvent.event, stream, cudaEventRecordDefault);
    if (attribute.id == cudaLaunchAttributeLaunchCompletionEvent)
      record_event(attribute.val.launchCompletionEvent.event, stream, cudaEventRecordDefault);
  }
}

}  // namespace

extern "C" {

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared, cudaStream_t stream) {
  const cudaError_t status =
      api("cudaLaunchKernel", [&] { launch(function, grid, block, arguments, shared, stream, {}); });
  // <<<...>>> drops the status. A device that has failed was reported.
  if (std::exchange(launching_by_chevrons(), false) && status != cudaSuccess &&
      entry_error() == cudaSuccess) {
    refused_launch(name_of(function), status);
  }
  return status;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                        std::size_t shared, cudaStream_t stream) {
  return api("cudaLaunchCooperativeKernel", [&] {
    cudaLaunchAttribute cooperative{};
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
    launch(function, grid, block, arguments, shared, stream, {&cooperative, 1});
  });
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return api("cudaLaunchKernelExC", [&] {
    require(config);
    launch(function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, config->stream,
           {config->attrs, config->numAttrs});
  });
}
}
