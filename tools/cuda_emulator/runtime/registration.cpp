#include "runtime/registration.h"

#include <cuda_runtime_api.h>

#include <unordered_map>
#include <unordered_set>

#include "machine/report.h"
#include "machine/thread_object.h"
#include "ptx/fatbin.h"
#include "runtime/api.h"

namespace emulator {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Binary>> binaries;
  std::vector<std::unique_ptr<RegisteredKernel>> kernels;
  std::unordered_map<const void*, RegisteredKernel*> by_host;
  std::unordered_set<const void*> handles;
  std::unordered_map<const void*, RegisteredVariable> variables;
};
Registry& registry() {
  static Registry* const instance = new Registry;  // outlives the program's static objects
  return *instance;
}

struct LaunchConfiguration {
  dim3 grid, block;
  std::size_t shared;
  void* stream;
};
std::vector<LaunchConfiguration>& configurations() {
  return ThreadObject<std::vector<LaunchConfiguration>>::get();
}

Binary& binary_of(void** handle) { return *reinterpret_cast<Binary*>(handle); }

}  // namespace

void Binary::choose() {
  if (chosen_) return;
  for (const std::vector<ptx::PtxText>& unit : ptx::ptx_of(wrapper_)) {
    if (const ptx::PtxText* const text = ptx::choose(unit)) {
      texts_.push_back(text->text);
      architecture_ = text->architecture;
    }
  }
  chosen_ = true;
}

const std::vector<std::string>& Binary::texts() {
  const std::lock_guard lock(mutex_);
  choose();
  return texts_;
}

int Binary::architecture() {
  const std::lock_guard lock(mutex_);
  choose();
  return architecture_;
}

Module& Binary::module(int device) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Module>& module = modules_[device];
  if (!module) {
    choose();
    if (texts_.empty()) {
      report(Severity::error, "no-ptx",
             "the program holds no PTX for compute capability 9.0 or lower: build it with "
             "-gencode arch=compute_90,code=compute_90");
      throw ApiError{cudaErrorNoKernelImageForDevice};
    }
    Module* other = nullptr;
    for (const auto& [number, loaded] : modules_)
      if (loaded) other = loaded.get();
    module = std::make_unique<Module>(texts_, device, other);
  }
  return *module;
}

void Binary::fill_managed_pointers(int device) {
  const std::lock_guard lock(mutex_);
  for (const auto& [pointer, name] : managed) {
    if (*pointer) continue;
    if (const Allocation* const variable = module(device).variable(name)) {
      *pointer = reinterpret_cast<void*>(variable->begin);
    }
  }
}

const Kernel* RegisteredKernel::on(int device) {
  const std::lock_guard lock(mutex_);
  const auto known = kernels_.find(device);
  if (known != kernels_.end()) return known->second;
  binary->fill_managed_pointers(device);
  return kernels_[device] = binary->module(device).kernel(name);
}

RegisteredKernel* find_kernel(const void* function) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto host = r.by_host.find(function);
  if (host != r.by_host.end()) return host->second;
  if (!r.handles.contains(function)) return nullptr;
  return static_cast<RegisteredKernel*>(const_cast<void*>(function));
}

const RegisteredVariable* find_variable(const void* symbol) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.variables.find(symbol);
  return found == r.variables.end() ? nullptr : &found->second;
}

}  // namespace emulator

using namespace emulator;

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.binaries.push_back(std::make_unique<Binary>(wrapper));
  return reinterpret_cast<void**>(r.binaries.back().get());
}

void __cudaRegisterFatBinaryEnd(void**) {}

// The module stays: work that is not done yet may use it when the program's exit handlers run.
void __cudaUnregisterFatBinary(void**) {}

void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  auto kernel = std::make_unique<RegisteredKernel>();
  kernel->binary = &binary_of(handle);
  kernel->name = name;
  kernel->host = host;
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.by_host[host] = kernel.get();
  r.handles.insert(kernel.get());
  r.kernels.push_back(std::move(kernel));
}

void __cudaRegisterVar(void** handle, char* host, char*, const char* name, int, std::size_t bytes, int, int) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.variables[host] = {&binary_of(handle), name, bytes};
}

void __cudaRegisterManagedVar(void** handle, void** host_pointer, char*, const char* name, int,
                              std::size_t bytes, int, int) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  Binary& binary = binary_of(handle);
  r.variables[host_pointer] = {&binary, name, bytes};
  binary.managed[host_pointer] = name;
}

void __cudaRegisterHostVar(void**, const char*, char*, std::size_t) {}

char __cudaInitModule(void** handle) {
  return api("__cudaInitModule", [&] { binary_of(handle).fill_managed_pointers(current_device()); }) ==
         cudaSuccess;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, void* stream) {
  configurations().push_back({grid, block, shared, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  if (configurations().empty()) return remember(cudaErrorMissingConfiguration);
  const LaunchConfiguration& top = configurations().back();
  *grid = top.grid;
  *block = top.block;
  *shared = top.shared;
  *static_cast<void**>(stream) = top.stream;
  configurations().pop_back();
  launching_by_chevrons() = true;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  RegisteredKernel* const found = find_kernel(host);
  *kernel = reinterpret_cast<cudaKernel_t>(found);
  return found ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  return api("cudaGetKernel", [&] {
    require(kernel);
    RegisteredKernel* const found = find_kernel(host);
    require(found, cudaErrorInvalidDeviceFunction);
    *kernel = reinterpret_cast<cudaKernel_t>(found);
  });
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* host) {
  return api("cudaGetFuncBySymbol", [&] {
    require(function);
    RegisteredKernel* const found = find_kernel(host);
    require(found, cudaErrorInvalidDeviceFunction);
    *function = reinterpret_cast<cudaFunction_t>(found);
  });
}

cudaError_t cudaFuncGetName(const char** name, const void* function) {
  return api("cudaFuncGetName", [&] {
    require(name);
    const RegisteredKernel* const found = find_kernel(function);
    require(found, cudaErrorInvalidDeviceFunction);
    *name = found->name.c_str();
  });
}
}
