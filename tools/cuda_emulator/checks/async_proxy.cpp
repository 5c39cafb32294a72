#include "checks/async_proxy.h"

#include <string>

#include "machine/block.h"
#include "machine/launch.h"
#include "machine/report.h"
#include "memory/address_space.h"

namespace emulator {

void AsyncProxy::written(const Warp& warp, const Instruction& i, const Access& access, ptx::Space space) {
  Writes& all = writes(space);
  for_lanes(access.lanes, [&](int lane) {
    const std::uint64_t address = access.address[static_cast<std::size_t>(lane)];
    for (std::uint64_t k = address / unit; k <= (address + access.bytes - 1) / unit; ++k)
      all.insert_or_assign(k, Write{&i, warp.thread(lane)});
  });
}

void AsyncProxy::copied_to(ptx::Space space, std::uint64_t address, std::uint32_t bytes) {
  for (std::uint64_t k = address / unit; k <= (address + bytes - 1) / unit; ++k) writes(space).erase(k);
}

void AsyncProxy::copied_from(Warp& warp, const Instruction& i, int lane, ptx::Space space,
                             std::uint64_t address, std::uint32_t bytes) const {
  for (std::uint64_t k = address / unit; k <= (address + bytes - 1) / unit; ++k) {
    const auto found = writes(space).find(k);
    if (found == writes(space).end()) continue;
    constexpr const char* kind = "proxy-fence";
    const ReportPlace place{&warp, lane, &i};
    if (repeated(kind, place)) return;
    const Write& write = found->second;
    const ptx::Statement& s = *write.instruction->statement;
    std::string source = describe_source(*warp.block().launch().kernel().function->module, s.place);
    if (!source.empty()) source += ", ";
    report(Severity::error, kind,
           "bulk copy of " +
               (space == ptx::Space::shared
                    ? "shared memory, offset " + std::to_string(address - reserved_shared)
                    : AddressSpace::instance().describe(address, bytes)) +
               ", which thread number " + std::to_string(write.thread) + " wrote at " + source + "'" +
               s.text + "' (PTX line " + std::to_string(s.place.line) + "): no fence.proxy.async between",
           place);
    return;
  }
}

void AsyncProxy::fence(bool shared, bool global) {
  if (shared) shared_.clear();
  if (global) global_.clear();
}

}  // namespace emulator
