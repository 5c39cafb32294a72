#include "checks/word_history.h"

#include <algorithm>
#include <mutex>
#include <string>

#include "machine/report.h"

namespace emulator {
namespace {

using P = PackedAccess;

std::uint64_t with_mask(std::uint64_t access, unsigned mask) {
  return mask ? (access & ~P::mask_field) | std::uint64_t{mask} << 56 : 0;
}

std::uint64_t with_epoch(std::uint64_t access, std::uint32_t epoch) {
  return (access & ~P::epoch_field) | std::uint64_t{epoch} << 44;
}

bool same_block(std::uint64_t a, std::uint64_t b) {
  return ((a ^ b) & (P::operation_field | P::block_field)) == 0;
}
bool same_operation(std::uint64_t a, std::uint64_t b) { return P::operation(a) == P::operation(b); }

/// How the accessor's block comes after an access of another block of the launch. `fenced`: first epoch whose handover behind a fence
/// covers the access.
Conflict after_block(std::uint64_t other, std::uint32_t fenced, const Accessor& me) {
  const KnownEpochs known = me.clocks ? me.clocks->known(me.clock, P::block(other)) : KnownEpochs{};
  return known.fenced >= fenced         ? Conflict::none
         : known.any >= P::epoch(other) ? Conflict::missing_fence
                                        : Conflict::blocks;
}
Conflict after_block(std::uint64_t other, const Accessor& me) {
  return after_block(other, P::epoch(other), me);
}

/// The same for a write. A strong one comes after the handover of its own epoch: a later fence covers it, and so does a strong read of the
/// word that saw it and comes before the accessor. `read`: the last read of the word, which is later than the write.
Conflict after_write(std::uint64_t write, std::uint64_t read, const Accessor& me) {
  if (!(write & P::strong)) return after_block(write, me);
  const Conflict conflict = after_block(write, std::min(P::epoch(write) + 1, P::last_epoch), me);
  if (conflict != Conflict::missing_fence || !(read & P::strong) || !same_operation(read, write))
    return conflict;
  const bool seen =
      (read & P::many) || same_block(read, me.packed) || after_block(read, me) == Conflict::none;
  return seen ? Conflict::none : conflict;
}

/// How it comes after all reads of a launch of which `read` is one with the highest epoch. What is not certain is no conflict.
Conflict after_many(std::uint64_t read, const Accessor& me) {
  if (P::block(read) != P::block(me.packed)) return after_block(read, me);
  // Some other block has read, in the same epoch or in an earlier one.
  const std::uint32_t epoch = read & P::several ? P::epoch(read) : 1;
  const bool ordered = me.clocks->knows_other(me.clock, P::block(read), static_cast<std::uint16_t>(epoch));
  return ordered ? Conflict::none : Conflict::blocks;
}

Finding conflict_with_write(std::uint64_t write, std::uint64_t read, unsigned mask, const Accessor& me) {
  Finding finding{Conflict::none, true, write};
  if (!(P::mask(write) & mask)) return finding;
  if (!same_operation(write, me.packed)) {
    // Kernels that run at the same time may meet at one word by atomics, as blocks may.
    if (!(write & me.packed & P::strong) && !me.earlier->before(P::operation(write)))
      finding.conflict = Conflict::operations;
  } else if (me.packed & P::constant) {
    finding.conflict = Conflict::read_only;
  } else if (!same_block(write, me.packed) && !(write & me.packed & P::strong)) {
    finding.conflict = after_write(write, read, me);
  }
  return finding;
}

Finding conflict_with_read(std::uint64_t read, unsigned mask, const Accessor& me) {
  Finding finding{Conflict::none, false, read};
  if (!(P::mask(read) & mask)) return finding;
  if (!same_operation(read, me.packed)) {
    if (!(read & me.packed & P::strong) && !me.earlier->before(P::operation(read)))
      finding.conflict = Conflict::operations;
  } else if (read & P::constant) {
    finding.conflict = Conflict::read_only;
  } else if (!(read & me.packed & P::strong)) {
    if (read & P::many)
      finding.conflict = after_many(read, me);
    else if (!same_block(read, me.packed))
      finding.conflict = after_block(read, me);
  }
  return finding;
}

/// Two accesses of one block of one kind: bytes that only the old one touched keep no epoch of their own; the older one stands for
/// both, so that nobody is blamed for what is ordered.
std::uint64_t merged(std::uint64_t old, std::uint64_t mine) {
  if (!(P::mask(old) & ~P::mask(mine))) return mine | (old & P::constant);
  const std::uint64_t flags = (old | mine) & (P::mask_field | P::strong | P::constant);
  return with_epoch(mine, std::min(P::epoch(old), P::epoch(mine))) | flags;
}

std::uint64_t joined_reads(std::uint64_t old, std::uint64_t mine, const Accessor& me) {
  if (!old) return mine;
  if (!same_operation(old, mine)) {
    const OperationId both = me.earlier->both(P::operation(old));
    if (both == P::operation(mine) || both >= P::operation_limit) return mine;
    return ((old | mine) & (P::mask_field | P::strong)) | both;
  }
  if (!(old & P::many)) {
    if (same_block(old, mine)) return merged(old, mine);
    const Conflict order = after_block(old, me);
    if (order != Conflict::blocks) return mine | (old & P::constant);
  }
  const std::uint64_t flags = ((old | mine) & (P::mask_field | P::strong | P::constant)) | P::many;
  if (P::epoch(mine) > P::epoch(old)) return mine | flags;
  if (P::epoch(mine) == P::epoch(old) && !same_block(old, mine)) return old | flags | P::several;
  return old | flags;
}

/// Whether the sides of a cell cannot hold the access beside the old one without mixing up bytes of different blocks.
bool needs_split(std::uint64_t old, unsigned mask, bool covers, const Accessor& me) {
  if (!old || !same_operation(old, me.packed)) return false;
  if (!(old & P::many) && same_block(old, me.packed)) return false;
  return covers ? (P::mask(old) & ~mask) != 0 : P::mask(old) != mask;
}

Finding record_split(Granule& granule, std::uint32_t word, unsigned mask, const Accessor& me) {
  SplitWords& split = granule.split_words();
  WordCell& cell = granule.cells[word];
  std::lock_guard lock(split.mutex);
  SplitWords::Bytes& bytes = split.words[word];
  const std::uint64_t w = cell.write.load(std::memory_order_relaxed);
  if (w != P::split) {
    const std::uint64_t r = cell.read.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < 4; ++i) {
      bytes.write[i] = with_mask(w, P::mask(w) & 1u << i);
      bytes.read[i] = with_mask(r, P::mask(r) & 1u << i);
    }
    cell.write.store(P::split, std::memory_order_relaxed);
    cell.read.store(0, std::memory_order_relaxed);
  }
  Finding first;
  for (unsigned i = 0; i < 4; ++i) {
    if (!(mask & 1u << i)) continue;
    const Finding finding = judge(bytes.write[i], bytes.read[i], 1u << i, me);
    if (first.conflict == Conflict::none) first = finding;
  }
  if (me.write && mask == 15) {
    split.words.erase(word);
    cell.write.store(me.packed, std::memory_order_relaxed);
    cell.read.store(0, std::memory_order_relaxed);
  }
  return first;
}

}  // namespace

bool fits_history(OperationId operation) {
  if (operation < P::operation_limit) [[likely]]
    return true;
  static std::once_flag said;
  std::call_once(said, [] {
    report(Severity::error, "check-limit",
           "races in global memory are looked for among the first " + std::to_string(P::operation_limit - 1) +
               " operations (launches, copies, fills) of a program, and this one has more: let it do less, "
               "or use --no-check");
  });
  return false;
}

bool EarlierOperations::before(OperationId other) {
  const auto found = std::ranges::find(known_, other);
  if (found != known_.end() && other != none_known) {
    std::swap(*found, known_[0]);
    return true;
  }
  if (!OperationOrder::instance().before(other, mine_)) return false;
  std::shift_right(known_.begin(), known_.end(), 1);
  known_[0] = other;
  return true;
}

OperationId EarlierOperations::both(OperationId other) {
  if (before(other)) return mine_;
  if (pair_ != other) {
    pair_ = other;
    pair_result_ = OperationOrder::instance().both(other, mine_);
  }
  return pair_result_;
}

Finding judge(std::uint64_t& write, std::uint64_t& read, unsigned mask, const Accessor& me) {
  const std::uint64_t mine = with_mask(me.packed, mask);
  Finding finding = conflict_with_write(write, read, mask, me);
  if (me.write) {
    if (finding.conflict == Conflict::none || finding.conflict == Conflict::missing_fence) {
      const Finding other = conflict_with_read(read, mask, me);
      if (other.conflict != Conflict::none) finding = other;
    }
    const bool rest = write && same_block(write, mine) && (P::mask(write) & ~mask);
    write = rest ? merged(write, mine) : mine;
    if (!(P::mask(read) & ~mask)) read = 0;
  } else {
    read = joined_reads(read, mine, me);
  }
  return finding;
}

Finding record_slowly(Granule& granule, std::uint32_t word, unsigned mask, const Accessor& me) {
  WordCell& cell = granule.cells[word];
  const std::uint64_t old_write = cell.write.load(std::memory_order_relaxed);
  const std::uint64_t old_read = cell.read.load(std::memory_order_relaxed);
  if (old_write == P::split ||
      (me.write ? needs_split(old_write, mask, true, me) : needs_split(old_read, mask, false, me)))
    return record_split(granule, word, mask, me);
  std::uint64_t write = old_write, read = old_read;
  const Finding finding = judge(write, read, mask, me);
  if (write != old_write) cell.write.store(write, std::memory_order_relaxed);
  if (read != old_read) cell.read.store(read, std::memory_order_relaxed);
  return finding;
}

}  // namespace emulator
