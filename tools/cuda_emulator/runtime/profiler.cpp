#include <cuda_profiler_api.h>

#include "counters/counters.h"
#include "runtime/api.h"
#include "timeline/recorder.h"

using namespace emulator;

extern "C" {

/// Counters and the timeline begin anew with what is launched from here on.
cudaError_t cudaProfilerStart() {
  return api("cudaProfilerStart", [] {
    Scheduler::instance().wait_all(false);
    restart_counters();
    timeline::restart();
  });
}

/// Writes what was counted since cudaProfilerStart to the file that CUDA_EMULATOR_COUNTERS names, and the record of the timeline,
/// which ends here.
cudaError_t cudaProfilerStop() {
  return api("cudaProfilerStop", [] {
    Scheduler::instance().wait_all(false);
    write_counters();
    timeline::finish();
  });
}
}
