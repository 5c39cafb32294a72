#include "machine/standstill.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <set>
#include <vector>

#include "machine/block.h"
#include "machine/launch.h"
#include "machine/report.h"
#include "memory/address_space.h"

namespace emulator {
namespace {

/// The warps that stand at one instruction for one reason.
struct Place {
  std::string reason;  ///< of the first
  const Warp* first;
  const Instruction* instruction;
  std::uint64_t warps = 0;
  std::set<const Block*> blocks;
};

std::string hexadecimal(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%" PRIx64, value);
  return text;
}

std::string describe_spin(const Block& block, const Spin& spin) {
  const Instruction& i = *spin.instruction;
  if (spin.describe) return "waiting for " + spin.describe(block, spin);
  if (i.statement->opcode == "griddepcontrol") return "waiting for the kernel before in the stream";
  const bool shared = (i.memory.space == ptx::Space::shared) || (spin.address >> 32) == 0;
  return "in a loop that reads " + hexadecimal(spin.value) + " at " +
         (shared ? "byte " + std::to_string(spin.address) + " of shared memory"
                 : hexadecimal(spin.address) + ": " + AddressSpace::instance().describe(spin.address));
}

/// The last spin of these lanes, if the warp does nothing else.
const Spin* spin_of(const Warp& warp, LaneMask lanes) {
  if (!warp.waits()) return nullptr;
  const auto found = std::find_if(warp.spins.begin(), warp.spins.end(),
                                  [&](const Spin& s) { return s.instruction && (s.lanes & lanes); });
  return found == warp.spins.end() ? nullptr : &*found;
}

}  // namespace

std::uint64_t hang_limit() {
  static const std::uint64_t limit = environment_number("CUDA_EMULATOR_HANG_AFTER", std::uint64_t{1} << 23);
  return limit;
}

std::string describe_standstill(std::span<const Block* const> blocks) {
  std::vector<Place> places;
  std::map<std::pair<const Instruction*, bool>, std::size_t> known;  // with whether the lanes compute
  for (const Block* const block : blocks)
    for (const auto& warp : block->warps()) {
      const auto stands = [&](const Instruction* instruction, bool computes, const auto& reason) {
        const auto [at, fresh] = known.try_emplace({instruction, computes}, places.size());
        if (fresh) places.push_back({reason(), warp.get(), instruction, 0, {}});
        Place& place = places[at->second];
        ++place.warps;
        place.blocks.insert(block);
      };
      for (const Waiting& w : warp->waiting())
        stands(w.instruction, false, [&]() -> std::string {
          if (w.what == Waiting::For::block)
            return "at barrier " + std::to_string(w.barrier) + ", where " +
                   block->describe_barrier(w.barrier);
          return "lanes " + hexadecimal(w.lanes) + " waiting for lanes " + hexadecimal(w.members & ~w.lanes);
        });
      for (const Group& group : warp->groups()) {
        if (const Spin* const spin = spin_of(*warp, group.lanes))
          stands(spin->instruction, false, [&] { return describe_spin(*block, *spin); });
        else
          stands(&group.frame->function->code[group.next], true, [] { return std::string("computing"); });
      }
    }
  std::string text;
  for (const Place& place : places) {
    const ptx::Dim3 p = place.first->block().position();
    text += "    " + std::to_string(place.warps) + (place.warps == 1 ? " warp" : " warps") + " of " +
            std::to_string(place.blocks.size()) + (place.blocks.size() == 1 ? " block" : " blocks") +
            " (first: block (" + std::to_string(p.x) + "," + std::to_string(p.y) + "," + std::to_string(p.z) +
            ") warp " + std::to_string(place.first->index()) + "): " + place.reason + "\n        " +
            describe_statement({place.first, -1, place.instruction}) + "\n";
  }
  return text;
}

namespace {

std::atomic<int> signal_number{0}, launches{0};

extern "C" void answer_signal(int number) {
  int none = 0;
  if (launches.load() && signal_number.compare_exchange_strong(none, number)) return;
  signal(number, SIG_DFL);
  raise(number);
}

}  // namespace

void answer_signals() {
  for (const int number : {SIGTERM, SIGINT}) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) continue;
    action.sa_handler = answer_signal;
    action.sa_flags = SA_RESTART;
    sigaction(number, &action, nullptr);
  }
}

int signal_to_answer() { return signal_number.load(std::memory_order_relaxed); }

void end_by_signal() {
  const int number = signal_to_answer();
  signal(number, SIG_DFL);
  kill(getpid(), number);
  for (;;) pause();
}

AnswersSignals::AnswersSignals() { ++launches; }
AnswersSignals::~AnswersSignals() { --launches; }

}  // namespace emulator
