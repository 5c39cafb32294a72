#include <cuda_profiler_api.h>

#include "counters/counters.h"
#include "runtime/api.h"

using namespace emulator;

extern "C" {

/// Counting begins anew with what is launched from here on.
cudaError_t cudaProfilerStart() {
  return api("cudaProfilerStart", [] {
    Scheduler::instance().wait_all(false);
    restart_counters();
  });
}

/// Writes what was counted since cudaProfilerStart to the file that CUDA_EMULATOR_COUNTERS names.
cudaError_t cudaProfilerStop() {
  return api("cudaProfilerStop", [] {
    Scheduler::instance().wait_all(false);
    write_counters();
  });
}
}
