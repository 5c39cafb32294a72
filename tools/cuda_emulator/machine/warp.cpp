#include "machine/warp.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "machine/block.h"
#include "machine/launch.h"
#include "machine/report.h"
#include "machine/watch.h"

namespace emulator {
namespace {

/// Backward branches that a group takes before another group of its warp gets its turn: lanes that spin must not keep the lane
/// they wait for from running.
constexpr std::uint32_t patience = 256;
constexpr std::uint32_t local_limit = 512u
                                      << 10;  ///< bytes of local memory a lane (CUDA C++ Programming Guide)

}  // namespace

void Frame::begin(const Function& begun) {
  function = &begun;
  if (registers.size() < begun.register_bytes) registers = RowMemory(begun.register_bytes);
  for (const Function::RowRange& rows : begun.read_first)
    std::memset(registers.data() + rows.offset, 0, rows.bytes);
  parameters.assign(std::size_t{begun.parameter_bytes} * warp_size, std::byte{0});
}

Warp::Warp(Block& block, std::uint32_t index, LaneMask lanes) : block_(block), index_(index), alive_(lanes) {
  const Function& function = *block.launch().kernel().function;
  auto frame = std::make_unique<Frame>();
  frame->begin(function);
  frame->lanes = lanes;
  frame->local_top = function.local_bytes;
  local_reserve(frame->local_top);
  set_running({lanes, frame.get(), 0});
  frames_.push_back(std::move(frame));
}

Warp::~Warp() = default;

UndefinedValues& Warp::track_undefined() {
  if (!undefined_) {
    undefined_ = watch::no_undefined_values();
    reschedule_ = true;  // leaves the loop that does not track them
  }
  return *undefined_;
}

std::uint64_t Warp::run(std::uint64_t budget) {
  if (!running_.lanes) switch_group();
  Tally& tally = block_.tally();
  std::uint64_t executed = 0;
  // Runs until values begin or cease to be undefined: the usual loop does not ask for them.
  const auto run_groups = [&]<bool tracks>() {
    while (running_.lanes && executed < budget) {
      const Instruction& i = running_.frame->function->code[running_.next];
      LaneMask lanes = running_.lanes;
      if (i.guarded) {
        LaneMask holds;
        std::memcpy(&holds, registers_ + i.guard.where, sizeof holds);
        lanes &= i.guard_negated ? ~holds : holds;
      }
      ++running_.next;
      ++executed;
      tally.executed(i, lanes);
      if constexpr (tracks) {
        if (!watch::execute(*this, i, lanes)) undefined_.reset();
      } else if (lanes || i.always) {
        i.execute(*this, i, lanes);
      }
      if (wants_yield_) {
        wants_yield_ = false;
        const bool all = ++fruitless_ > 2 * ready_.size();
        if (!ready_.empty()) rotate();
        if (all) {
          yielded_ = true;
          return;
        }
      } else if (reschedule_ || running_.next >= limit_) {
        switch_group();
      } else if constexpr (!tracks) {
        continue;
      }
      if (tracks != (undefined_ != nullptr)) return;
    }
  };
  while (running_.lanes && executed < budget && !yielded_)
    undefined_ ? run_groups.template operator()<true>() : run_groups.template operator()<false>();
  since_wait_ += executed;
  if (yielded_) {
    if (waits_) since_wait_ = 0;
    fruitless_ = 0, waits_ = false;
  }
  if (!can_run() && !finished()) report_stuck();
  return executed;
}

void Warp::set_running(const Group& group) {
  running_ = group;
  registers_ = group.frame->registers.data();
  constants_ = group.frame->function->constants.data();
  backward_branches_ = 0;
  limit_ = ~0u;
  for (const Group& other : ready_)
    if (other.frame == group.frame && other.next > group.next) limit_ = std::min(limit_, other.next);
}

/// Adds lanes to those that can run, at one with lanes that stand at the same place.
void Warp::merge(Group group) {
  if (!group.lanes) return;
  for (Group& other : ready_)
    if (other.frame == group.frame && other.next == group.next) {
      other.lanes |= group.lanes;
      return;
    }
  ready_.push_back(group);
}

/// The group in the deepest frame, of these the one with the lowest next instruction, runs.
void Warp::switch_group() {
  reschedule_ = false;
  merge(running_);
  running_.lanes = 0;
  if (ready_.empty()) return;
  std::size_t best = 0;
  for (std::size_t k = 1; k < ready_.size(); ++k) {
    const Group &a = ready_[k], &b = ready_[best];
    if (a.frame->depth > b.frame->depth || (a.frame->depth == b.frame->depth && a.next < b.next)) best = k;
  }
  const Group chosen = ready_[best];
  ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(best));
  set_running(chosen);
}

/// The group that has waited longest runs, whatever its place.
void Warp::rotate() {
  reschedule_ = false;
  merge(running_);
  running_.lanes = 0;
  const Group chosen = ready_.front();
  ready_.erase(ready_.begin());
  set_running(chosen);
}

void Warp::addresses(const Instruction& i, int operand, std::uint32_t bytes, LaneMask lanes,
                     std::array<std::uint64_t, warp_size>& out) const {
  const std::uint64_t displacement = static_cast<std::uint64_t>(i.displacement);
  if (bytes == 8) {
    const std::uint64_t* row = source<std::uint64_t>(i, operand);
    for_lanes(lanes, [&](int lane) { out[static_cast<std::size_t>(lane)] = row[lane] + displacement; });
  } else {
    const std::uint32_t* row = source<std::uint32_t>(i, operand);
    for_lanes(lanes, [&](int lane) {
      out[static_cast<std::size_t>(lane)] =
          static_cast<std::uint32_t>(row[lane] + static_cast<std::uint32_t>(displacement));
    });
  }
}

void Warp::branch(LaneMask taken, std::uint32_t target) {
  if (!taken) return;
  const bool backward = target < running_.next;
  if (taken == running_.lanes) {
    running_.next = target;
    if (backward && !ready_.empty()) {
      // A loop may jump back over groups that stand at lower places.
      if (++backward_branches_ > patience) {
        wants_yield_ = true;
        fruitless_ = 0, waits_ = false;
      } else
        reschedule_ = true;
    }
    return;
  }
  running_.lanes &= ~taken;
  merge({taken, running_.frame, target});
  reschedule_ = true;
}

Spin& Warp::spin_of(const Instruction& i) {
  auto at = std::find_if(spins.begin(), spins.end() - 1, [&](const Spin& s) { return s.instruction == &i; });
  if (at->instruction != &i) *at = Spin{&i};  // the last one
  std::rotate(spins.begin(), at, at + 1);
  return spins.front();
}

std::vector<Group> Warp::groups() const {
  std::vector<Group> all;
  if (running_.lanes) all.push_back(running_);
  all.insert(all.end(), ready_.begin(), ready_.end());
  return all;
}

Frame& Warp::call(const Instruction& i, const Function& function, LaneMask lanes) {
  std::unique_ptr<Frame> frame;
  if (free_frames_.empty()) {
    frame = std::make_unique<Frame>();
  } else {
    frame = std::move(free_frames_.back());
    free_frames_.pop_back();
  }
  Frame& caller = *running_.frame;
  frame->begin(function);
  frame->caller = &caller;
  frame->depth = caller.depth + 1;
  frame->return_to = running_.next;
  frame->call = &i;
  frame->lanes = lanes;
  frame->local_base = (caller.local_top + 15) / 16 * 16;
  frame->local_top = frame->local_base + function.local_bytes;
  if (frame->local_top > local_limit) {
    report(Severity::error, "stack-overflow", "local memory of a thread exceeds 512 KiB (calls too deep)",
           {this, -1, &i});
    throw KernelFault{714};
  }
  local_reserve(frame->local_top);
  forget_local(lanes, frame->local_base, frame->local_top);
  Frame& entered = *frame;
  frames_.push_back(std::move(frame));
  running_.lanes &= ~lanes;
  merge(running_);
  running_.lanes = 0;
  set_running({lanes, &entered, 0});
  reschedule_ = false;
  return entered;
}

void Warp::release_frame(Frame* frame) {
  const auto found = std::find_if(frames_.begin(), frames_.end(),
                                  [&](const std::unique_ptr<Frame>& f) { return f.get() == frame; });
  free_frames_.push_back(std::move(*found));
  frames_.erase(found);
}

void Warp::leave(LaneMask lanes) {
  Frame* frame = running_.frame;
  if (!frame->caller) {
    exit(lanes);
    return;
  }
  if (undefined_) watch::lanes_return(*this, *frame, lanes);
  running_.lanes &= ~lanes;
  frame->lanes &= ~lanes;
  merge({lanes, frame->caller, frame->return_to});
  if (!frame->lanes) release_frame(frame);
  reschedule_ = true;
}

void Warp::exit(LaneMask lanes) {
  if (!copies.pending.empty()) copies.land(*this, lanes);
  watch::lanes_exit(*this, lanes);
  alive_ &= ~lanes;
  running_.lanes &= ~lanes;
  reschedule_ = true;
  for (Frame* frame = running_.frame; frame;) {
    Frame* const caller = frame->caller;
    frame->lanes &= ~lanes;
    if (!frame->lanes && caller) release_frame(frame);
    frame = caller;
  }
  try_fire();
  block_.lanes_exited(*this);
}

void Warp::meet(const Instruction& i, LaneMask lanes, LaneMask members, Fire fire, bool aligned) {
  if (((members & alive_) & ~lanes) == 0) {
    const Participant all{&i, running_.frame, lanes};
    fire_now({&all, 1}, lanes, fire);
    if (held_) running_.lanes &= ~lanes, reschedule_ = true;
    return;
  }
  running_.lanes &= ~lanes;
  reschedule_ = true;
  bool joined = false;
  for (Waiting& other : waiting_)
    if (other.what == Waiting::For::warp && other.instruction == &i && other.frame == running_.frame &&
        other.members == members) {
      other.lanes |= lanes;
      joined = true;
      break;
    }
  if (!joined) {
    Waiting entry;
    entry.what = Waiting::For::warp;
    entry.lanes = lanes;
    entry.frame = running_.frame;
    entry.instruction = &i;
    entry.members = members;
    entry.aligned = aligned;
    entry.fire = fire;
    waiting_.push_back(entry);
  }
  try_fire();
}

void Warp::fire_now(std::span<const Participant> participants, LaneMask lanes, Fire fire) {
  held_ = false;
  firing_ = participants;
  fire(*this, participants, lanes);
  firing_ = {};
}

void Warp::hold_at_barrier(std::uint32_t barrier, Resume resume) {
  held_ = true;
  for (const Participant& p : firing_) {
    Waiting entry;
    entry.what = Waiting::For::block;
    entry.lanes = p.lanes;
    entry.frame = p.frame;
    entry.instruction = p.instruction;
    entry.barrier = barrier;
    entry.resume = resume;
    waiting_.push_back(entry);
  }
}

/// Runs every warp operation whose lanes have all come.
void Warp::try_fire() {
  for (std::size_t k = 0; k < waiting_.size();) {
    const Waiting first = waiting_[k];
    const auto belongs = [&](const Waiting& other) {
      return other.what == Waiting::For::warp && other.members == first.members && other.fire == first.fire &&
             other.instruction->execute == first.instruction->execute &&
             other.instruction->detail == first.instruction->detail &&
             (!first.aligned || other.instruction == first.instruction);
    };
    LaneMask lanes = 0;
    if (first.what == Waiting::For::warp)
      for (const Waiting& other : waiting_)
        if (belongs(other)) lanes |= other.lanes;
    if (first.what != Waiting::For::warp || ((first.members & alive_) & ~lanes) != 0) {
      ++k;
      continue;
    }
    std::vector<Participant> participants;
    for (const Waiting& other : waiting_)
      if (belongs(other)) participants.push_back({other.instruction, other.frame, other.lanes});
    std::erase_if(waiting_, belongs);
    fire_now(participants, lanes, first.fire);
    if (!held_)
      for (const Participant& p : participants) merge({p.lanes, p.frame, p.instruction->index + 1});
    reschedule_ = true;
    k = 0;
  }
}

void Warp::release_from_barrier(std::uint32_t barrier) {
  std::vector<Waiting> released;
  std::erase_if(waiting_, [&](const Waiting& w) {
    const bool mine = w.what == Waiting::For::block && w.barrier == barrier;
    if (mine) released.push_back(w);
    return mine;
  });
  for (const Waiting& w : released) {
    if (w.resume) w.resume(*this, {w.instruction, w.frame, w.lanes});
    merge({w.lanes, w.frame, w.instruction->index + 1});
  }
  reschedule_ = true;
}

/// No lane can run, and some wait for lanes of this warp that will never come.
void Warp::report_stuck() {
  const auto first = std::find_if(waiting_.begin(), waiting_.end(),
                                  [](const Waiting& w) { return w.what == Waiting::For::warp; });
  if (first == waiting_.end()) return;  // all wait at block barriers
  const auto place = [](const Waiting& w) {
    char lanes[16];
    std::snprintf(lanes, sizeof lanes, "0x%08x", w.lanes);
    const ptx::Statement& s = *w.instruction->statement;
    return "lanes " + std::string(lanes) + " wait at '" + s.text + "' (PTX line " +
           std::to_string(s.place.line) + ")";
  };
  const auto is_barrier = [](const Waiting& w) { return w.instruction->kind == InstructionClass::barrier; };
  // Barriers of the block have no member mask.
  const auto has_members = [&](const Waiting& w) {
    const std::vector<std::string>& modifiers = w.instruction->statement->modifiers;
    return w.what == Waiting::For::warp &&
           (!is_barrier(w) || (!modifiers.empty() && modifiers.front() == "warp"));
  };
  const bool barrier = is_barrier(*first);
  std::string text = barrier ? "divergent barrier: " : "a warp operation waits for lanes that never come: ";
  bool comma = false;
  for (const Waiting& w : waiting_) {
    text += (comma ? "; " : "") + place(w);
    if (has_members(w)) {
      char members[16];
      std::snprintf(members, sizeof members, "0x%08x", w.members);
      text += " for lanes " + std::string(members);
    }
    comma = true;
  }
  if (alive_ != initial_) {
    char exited[16];
    std::snprintf(exited, sizeof exited, "0x%08x", initial_ & ~alive_);
    text += "; lanes " + std::string(exited) + " have exited";
  }
  report(Severity::error, barrier ? "divergent-barrier" : "divergent-warp-operation", text,
         {this, std::countr_zero(first->lanes), first->instruction});
  throw KernelFault{719};
}

void Warp::local_reserve(std::uint32_t bytes) {
  if (bytes <= local_capacity_) return;
  std::uint32_t capacity = std::max(local_capacity_ * 2, 256u);
  while (capacity < bytes) capacity *= 2;
  const auto grow = [&](auto& memory) {
    std::remove_reference_t<decltype(memory)> grown(std::size_t{capacity} * warp_size);
    for (std::size_t lane = 0; lane < warp_size && local_capacity_; ++lane)
      std::memcpy(grown.data() + lane * capacity, memory.data() + lane * local_capacity_, local_capacity_);
    memory = std::move(grown);
  };
  grow(local_);
  grow(local_written_);
  local_capacity_ = capacity;
}

/// The bytes belong to new variables.
void Warp::forget_local(LaneMask lanes, std::uint32_t from, std::uint32_t to) {
  if (from < to) for_lanes(lanes, [&](int lane) { std::memset(local_written(lane, from), 0, to - from); });
}

std::byte* Warp::local(int lane, std::uint64_t address, std::uint32_t bytes) {
  if (address > local_capacity_ || bytes > local_capacity_ - address) return nullptr;
  if (address + bytes > running_.frame->local_top) return nullptr;
  return local_.data() + static_cast<std::size_t>(lane) * local_capacity_ + address;
}

std::uint32_t Warp::local_alloca(std::uint32_t bytes, std::uint32_t alignment) {
  Frame& frame = *running_.frame;
  alignment = std::max(alignment, 16u);
  const std::uint64_t at = (std::uint64_t{frame.local_top} + alignment - 1) / alignment * alignment;
  if (at + bytes > local_limit) {
    report(Severity::error, "stack-overflow", "local memory of a thread exceeds 512 KiB (alloca)",
           {this, -1, nullptr});
    throw KernelFault{714};
  }
  frame.local_top = static_cast<std::uint32_t>(at + bytes);
  local_reserve(frame.local_top);
  forget_local(running_.lanes, static_cast<std::uint32_t>(at), frame.local_top);
  return static_cast<std::uint32_t>(at);
}

}  // namespace emulator
