#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "counters/counters.h"
#include "instructions/system_call.h"
#include "machine/launch.h"
#include "machine/report.h"
#include "memory/address_space.h"
#include "runtime/api.h"
#include "timeline/recorder.h"

/// What happens when the program ends: remaining work runs, then leaks are noted, counters written and the exit status decided.
namespace emulator {
namespace {

int program_status = -1;  // -1: the program has not called exit() or returned from main
std::atomic<bool> used{false};

/// Runs among the program's exit handlers: libraries whose work waits in streams are still whole.
void at_exit(int status, void*) {
  program_status = status;
  // After a failure peers may be gone, and a program that ends inside of its host function cannot wait for it.
  if (status == 0 && used && !inside_host_function()) Scheduler::instance().wait_all(false);
}

void note_leaks() {
  // A program that ends because its device failed frees nothing.
  for (int device = 0; device < device_count(); ++device) {
    if (Scheduler::instance().device_error(device)) return;
  }
  for (const Allocation* const allocation : AddressSpace::instance().live()) {
    // Variables live as long as the program, those in managed memory too.
    if (allocation->label.starts_with("variable ") || allocation->kind == AllocationKind::system) continue;
    report(note_unless_strict(), "leak",
           "allocation " + std::to_string(allocation->number) + " (" + allocation->label + ", " +
               std::to_string(allocation->bytes) + " bytes) was never freed");
  }
}

/// Runs after all exit handlers and the destructors of static objects.
__attribute__((destructor)) void end() {
  if (!used) return;
  Scheduler::instance().stop();
  flush_printf();
  report_unread_refusals();
  if (program_status == 0) note_leaks();
  if (counters_enabled()) write_counters(), print_counters();
  timeline::finish();
  print_report_summary();
  const int status = exit_status(program_status);
  if (status == program_status) return;
  std::cout.flush();
  std::fflush(nullptr);
  _exit(status);
}

}  // namespace

/// Handlers that were registered before main would run after the library's own destructor.
void mark_used() {
  if (used.exchange(true)) return;
  on_exit(at_exit, nullptr);
}

}  // namespace emulator
