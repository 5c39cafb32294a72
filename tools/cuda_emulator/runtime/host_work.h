#pragma once
#include <cuda_runtime_api.h>

#include <string>

#include "runtime/scheduler.h"

namespace emulator {

/// cudaLaunchHostFunc: not called once the device has failed.
class HostWork : public Work {
 public:
  HostWork(cudaHostFn_t function_, void* data_) : function(function_), data(data_) {}
  int run(OperationId) override {
    function(data);
    return 0;
  }
  std::string name() const override { return "host function"; }
  bool ordered() const override { return false; }
  bool on_host() const override { return true; }
  timeline::Load::Kind load() const override { return timeline::Load::Kind::host; }

  cudaHostFn_t function;
  void* data;
};

/// cudaStreamAddCallback: called with the device's error, too.
class CallbackWork : public Work {
 public:
  CallbackWork(cudaStream_t stream, cudaStreamCallback_t callback, void* data)
      : stream_(stream), callback_(callback), data_(data) {}
  int run(OperationId) override {
    callback_(stream_, cudaSuccess, data_);
    return 0;
  }
  void skip(int error) override { callback_(stream_, static_cast<cudaError_t>(error), data_); }
  std::string name() const override { return "stream callback"; }
  bool ordered() const override { return false; }
  bool on_host() const override { return true; }
  timeline::Load::Kind load() const override { return timeline::Load::Kind::host; }

 private:
  cudaStream_t stream_;
  cudaStreamCallback_t callback_;
  void* data_;
};

}  // namespace emulator
