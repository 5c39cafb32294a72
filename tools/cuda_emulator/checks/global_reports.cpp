#include "checks/global_reports.h"

#include <chrono>
#include <thread>

#include "checks/order.h"
#include "instructions/host_access.h"
#include "machine/block.h"
#include "machine/launch.h"
#include "memory/address_space.h"

namespace emulator {
namespace {

using P = PackedAccess;

std::string describe_word(std::uint64_t address, std::uint32_t bytes) {
  return AddressSpace::instance().describe(address, bytes);
}

}  // namespace

const char* name_of(AccessKind kind) {
  return kind == AccessKind::load ? "read" : kind == AccessKind::store ? "write" : "atomic access";
}

const Launch& GlobalReports::launch() const { return warp_.block().launch(); }

bool GlobalReports::stores_equal(std::uint64_t address, std::uint64_t bytes, const ReportPlace& place,
                                 std::chrono::milliseconds patience) const {
  if (access_.kind != AccessKind::store || !access_.stored || place.lane < 0) return false;
  const std::byte* host = AddressSpace::instance().translate(address, bytes).host;
  const auto l = static_cast<std::size_t>(place.lane);
  const std::uint64_t offset = address - access_.address[l];
  if (!host || offset + bytes > access_.bytes) return false;
  const std::byte* mine = access_.stored + l * access_.stored_stride + offset;
  const auto equal = [&] {
    for (std::uint64_t i = 0; i < bytes; ++i) {
      if (load_relaxed<std::byte>(host + i) != mine[i]) return false;
    }
    return true;
  };
  const auto start = std::chrono::steady_clock::now();
  while (!equal()) {
    if (was_reported("global-race", place) || std::chrono::steady_clock::now() - start > patience)
      return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

std::string GlobalReports::describe_block(std::uint32_t block) const {
  const ptx::Dim3& grid = launch().shape().grid;
  if (launch().blocks() > P::block_mask) return "another block";
  return "block (" + std::to_string(block % grid.x) + "," + std::to_string(block / grid.x % grid.y) + "," +
         std::to_string(block / grid.x / grid.y) + ")";
}

void GlobalReports::unwritten(std::uint64_t address) const {
  const ReportPlace place = place_at(address);
  constexpr const char* kind = "uninitialised-global";
  if (repeated(kind, place)) return;
  report(Severity::error, kind,
         std::string(name_of(access_.kind)) + " of global memory never written: " + describe_word(address, 1),
         place);
}

void GlobalReports::conflict(const Finding& finding, std::uint64_t address, std::uint64_t bytes) const {
  const ReportPlace place = place_at(address);
  Severity severity = Severity::error;
  const char* kind = "global-race";
  switch (finding.conflict) {
    case Conflict::none:
      return;
    case Conflict::blocks:
      if (finding.other_wrote && !(finding.other & P::strong) &&
          stores_equal(address, bytes, place, std::chrono::milliseconds(20))) {
        severity = Severity::note;
        kind = "global-race-equal";
      }
      break;
    case Conflict::missing_fence:
      kind = "missing-fence";
      break;
    case Conflict::operations:
      kind = "stream-race";
      break;
    case Conflict::read_only:
      kind = "read-only-race";
      break;
  }
  if (repeated(kind, place)) return;
  std::string text = std::string(access_.read_only ? "read-only load" : name_of(access_.kind)) + " of " +
                     std::to_string(access_.bytes) + " bytes: " + describe_word(address, 1) + ", which ";
  const char* did = finding.other_wrote ? " wrote" : " read";
  const std::string other_block = describe_block(P::block(finding.other));
  switch (finding.conflict) {
    case Conflict::none:
      break;
    case Conflict::blocks:
      text += other_block + did + ", and nothing orders the two";
      if (severity == Severity::note) text += "; both write the same value";
      break;
    case Conflict::missing_fence:
      text += other_block + did +
              ", is handed over by an atomic or strong write with no fence (__threadfence) before it";
      break;
    case Conflict::operations:
      text += OperationOrder::instance().describe(P::operation(finding.other)) + did +
              ", with no event or synchronisation between it and " +
              OperationOrder::instance().describe(launch().operation());
      break;
    case Conflict::read_only:
      text +=
          other_block + (finding.other_wrote
                             ? " of the same launch wrote: ld.global.nc promises that nobody does"
                             : " of the same launch read by ld.global.nc, which promises that nobody writes");
      break;
  }
  report(severity, kind, text, place);
}

void GlobalReports::threads(std::span<const ThreadConflict> conflicts) const {
  for (const ThreadConflict& c : conflicts) {
    const ReportPlace place{&warp_, c.lane, &instruction_};
    const bool equal = c.other_wrote && !c.one_store &&
                       stores_equal(c.address, c.bytes, place, std::chrono::milliseconds(0));
    const char* const kind = equal ? "global-race-equal" : "global-race";
    if (repeated(kind, place)) continue;
    const ptx::Dim3& size = launch().shape().block;
    std::string text = std::string(name_of(access_.kind)) + " of " + std::to_string(access_.bytes) +
                       " bytes: " + describe_word(c.address, 1) + ", which thread (" +
                       std::to_string(c.other % size.x) + "," + std::to_string(c.other / size.x % size.y) +
                       "," + std::to_string(c.other / size.x / size.y) + ") of the same block " +
                       (c.other_wrote ? "wrote" : "read");
    if (c.line) text += " (" + describe_line(*launch().kernel().function, c.line) + ")";
    text += ", and nothing orders the two";
    if (equal) text += "; both write the same value";
    report(equal ? Severity::note : Severity::error, kind, text, place);
  }
}

void GlobalReports::constant_written(std::uint64_t address) const {
  report(Severity::error, "read-only",
         std::string(name_of(access_.kind)) + " of constant memory: " + describe_word(address, access_.bytes),
         place_at(address));
}

void GlobalReports::out_of_reach(const Allocation& allocation, std::uint64_t address) const {
  report(Severity::error, "peer-access",
         std::string(name_of(access_.kind)) + " of " + std::to_string(access_.bytes) + " bytes on device " +
             std::to_string(allocation.device) + " by device " + std::to_string(launch().device()) +
             ", which was not given access (" +
             (allocation.kind == AllocationKind::stream_ordered ? "cudaMemPoolSetAccess"
                                                                : "cudaDeviceEnablePeerAccess") +
             "): " + describe_word(address, access_.bytes),
         place_at(address));
}

void report_early_use(const Allocation& allocation, OperationId allocated, OperationId operation,
                      const char* what, const ReportPlace& place) {
  OperationOrder& order = OperationOrder::instance();
  report(Severity::error, "use-before-allocation",
         std::string(what) + " of memory whose allocation (" + order.describe(allocated) +
             ") is not ordered before " + order.describe(operation) + ": " +
             AddressSpace::instance().describe(allocation.begin),
         place);
}

void report_late_use(const Allocation& allocation, OperationId freed, OperationId operation, const char* what,
                     const ReportPlace& place) {
  OperationOrder& order = OperationOrder::instance();
  report(Severity::error, "use-after-free",
         std::string(what) + " of memory that " + order.describe(freed) +
             " frees, with nothing that orders " + order.describe(operation) +
             " before the free: " + AddressSpace::instance().describe(allocation.begin),
         place);
}

void report_early_free(const Allocation& allocation, OperationId user, OperationId operation) {
  OperationOrder& order = OperationOrder::instance();
  report(Severity::error, "use-after-free",
         order.describe(operation) + " frees memory that " + order.describe(user) +
             " uses, with nothing that orders the free after it: " +
             AddressSpace::instance().describe(allocation.begin));
}

void report_range(OperationId operation, OperationId other, bool other_wrote, std::uint64_t where, bool write,
                  const char* what) {
  OperationOrder& order = OperationOrder::instance();
  report(Severity::error, "stream-race",
         std::string(what) + (write ? " writes " : " reads ") + describe_word(where, 1) + ", which " +
             order.describe(other) + (other_wrote ? " wrote" : " read") +
             ", with no event or synchronisation between it and " + order.describe(operation));
}

}  // namespace emulator
