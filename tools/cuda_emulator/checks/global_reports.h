#pragma once
#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "checks/order.h"
#include "checks/thread_history.h"
#include "checks/word_history.h"
#include "machine/access.h"
#include "machine/report.h"

/// What the checks of global memory (checks/global_shadow.h) say about what they have found.
namespace emulator {

class Launch;
struct Allocation;

const char* name_of(AccessKind kind);  ///< "read", "write", "atomic access"

/// Of one access of a kernel. Each function reports, unless the same kind was reported for the instruction before.
class GlobalReports {
 public:
  GlobalReports(const Warp& warp, const Instruction& i, const Access& access)
      : warp_(warp), instruction_(i), access_(access) {}

  /// The lane whose bytes hold the address.
  ReportPlace place_at(std::uint64_t address) const {
    ReportPlace place{&warp_, -1, &instruction_};
    for_lanes(access_.lanes, [&](int lane) {
      if (place.lane < 0 && address - access_.address[static_cast<std::size_t>(lane)] < access_.bytes)
        place.lane = lane;
    });
    return place;
  }

  void unwritten(std::uint64_t address) const;
  void constant_written(std::uint64_t address) const;
  /// Memory of a device that the launch's device was given no access to.
  void out_of_reach(const Allocation& allocation, std::uint64_t address) const;
  /// With other blocks or operations.
  void conflict(const Finding& finding, std::uint64_t address, std::uint64_t bytes) const;
  /// With other threads of the block.
  void threads(std::span<const ThreadConflict> conflicts) const;

 private:
  const Launch& launch() const;
  std::string describe_block(std::uint32_t block) const;
  /// Whether the lane stores the bytes that memory holds already. The other write was judged, but may not have happened yet: its
  /// host thread gets some time.
  bool stores_equal(std::uint64_t address, std::uint64_t bytes, const ReportPlace& place,
                    std::chrono::milliseconds patience) const;

  const Warp& warp_;
  const Instruction& instruction_;
  const Access& access_;
};

/// The operation uses memory and nothing puts it behind the allocation, or before the free.
void report_early_use(const Allocation& allocation, OperationId allocated, OperationId operation,
                      const char* what, const ReportPlace& place);
void report_late_use(const Allocation& allocation, OperationId freed, OperationId operation, const char* what,
                     const ReportPlace& place);
/// The operation frees memory and nothing puts it behind its user.
void report_early_free(const Allocation& allocation, OperationId user, OperationId operation);
/// A copy, fill or library call and an earlier operation, which nothing orders.
void report_range(OperationId operation, OperationId other, bool other_wrote, std::uint64_t where, bool write,
                  const char* what);

}  // namespace emulator
