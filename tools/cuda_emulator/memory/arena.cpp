#include "memory/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "memory/address_space.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace emulator {
namespace {

/// Address space of zeros, backed by memory when it is touched.
std::byte* map(std::uint64_t bytes, int protection) {
  void* p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    throw std::runtime_error("no address space for " + std::to_string(bytes >> 20) + " MiB");
  madvise(p, bytes, MADV_DONTDUMP);
  return static_cast<std::byte*>(p);
}

constexpr std::uint64_t page = 4096;

[[noreturn]] void fail(const char* call) {
  throw std::runtime_error(std::string(call) + " of memory between processes: " + std::strerror(errno));
}

/// Replaces pages that are mapped already.
void map_over(std::uint64_t address, std::uint64_t bytes, int flags, int file, std::uint64_t offset) {
  void* const place = reinterpret_cast<void*>(address);
  if (mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | flags, file, static_cast<off_t>(offset)) ==
      MAP_FAILED)
    fail("mmap");
  madvise(place, bytes, MADV_DONTDUMP);
}

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

void fill_with_pattern(std::byte* begin, std::uint64_t bytes) {
  std::uint32_t* words = reinterpret_cast<std::uint32_t*>(begin);
  std::fill(words, words + bytes / 4, AddressSpace::fill_pattern);
}

}  // namespace

SplitWords& Granule::split_words() {
  SplitWords* words = split.load(std::memory_order_acquire);
  if (!words) {
    SplitWords* made = new SplitWords;
    if (split.compare_exchange_strong(words, made, std::memory_order_acq_rel)) {
#ifdef __SANITIZE_ADDRESS__
      // The only pointer to it lies in the arena's own mapping, where the check for leaks does not look.
      __lsan_ignore_object(made);
#endif
      return *made;
    }
    delete made;
  }
  return *words;
}

Arena::Arena(Kind kind, std::uint64_t capacity) : kind_(kind), capacity_(capacity) {
  // More addresses than memory: gaps, and freed ranges that are kept out of use.
  size_ = round_up(capacity + capacity / 4 + (256 << 20), Granule::bytes * 64);
  std::byte* contents = map(size_ + Granule::bytes, PROT_READ | PROT_WRITE);
  const auto aligned = [](std::byte* p) {
    return round_up(reinterpret_cast<std::uint64_t>(p), Granule::bytes);
  };
  begin_ = aligned(contents);
  if (kind == Kind::device) {
    const std::uint64_t addresses = aligned(map(size_ + Granule::bytes, PROT_NONE));
    distance_ = begin_ - addresses;
    begin_ = addresses;
  }
  const std::uint64_t granules = size_ / Granule::bytes;
  touched_ = reinterpret_cast<std::atomic<std::uint64_t>*>(map(granules / 8, PROT_READ | PROT_WRITE));
  chunks_ = reinterpret_cast<std::atomic<Granule*>*>(
      map((granules / granules_in_chunk + 1) * sizeof(*chunks_), PROT_READ | PROT_WRITE));
  never_used_ = begin_ + alignment;
}

std::optional<Arena::Range> Arena::take(std::uint64_t bytes, std::uint64_t align) {
  if (bytes > capacity_ || used_ + round_up(bytes, alignment) > capacity_) return std::nullopt;
  const std::uint64_t slot = round_up(bytes, alignment) + gap;
  const std::uint64_t next_unused = round_up(never_used_, align);
  if (next_unused + slot <= begin_ + size_) {
    if (next_unused > never_used_) free_[never_used_] = next_unused - never_used_;
    never_used_ = next_unused + slot;
    used_ += slot - gap;
    return Range{next_unused, slot};
  }
  for (;;) {
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const std::uint64_t first = it->first, end = first + it->second, begin = round_up(first, align);
      if (begin + slot > end) continue;
      free_.erase(it);
      if (begin > first) free_[first] = begin - first;
      if (end > begin + slot) free_[begin + slot] = end - begin - slot;
      used_ += slot - gap;
      return Range{begin, slot};
    }
    if (quarantine_.empty()) return std::nullopt;
    Range range = quarantine_.front();
    quarantine_.pop_front();
    auto next = free_.lower_bound(range.begin);
    if (next != free_.end() && next->first == range.begin + range.bytes) {
      range.bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin() && std::prev(next)->first + std::prev(next)->second == range.begin) {
      std::prev(next)->second += range.bytes;
    } else {
      free_[range.begin] = range.bytes;
    }
  }
}

std::optional<Arena::Range> Arena::take_again(std::uint64_t begin, std::uint64_t bytes) {
  const std::uint64_t slot = round_up(bytes, alignment) + gap;
  const auto found = std::ranges::find_if(
      quarantine_, [&](const Range& range) { return range.begin == begin && range.bytes == slot; });
  if (found == quarantine_.end() || used_ + slot - gap > capacity_) return std::nullopt;
  const Range range = *found;
  quarantine_.erase(found);
  used_ += slot - gap;
  return range;
}

void Arena::give_back(Range range) {
  quarantine_.push_back(range);
  used_ -= range.bytes - gap;
}

void Arena::touch_granule(std::uint64_t index, bool fill) {
  std::lock_guard lock(fill_mutexes_[index % fill_mutexes_.size()]);
  if (touched(index)) return;
  if (fill)
    fill_with_pattern(reinterpret_cast<std::byte*>(begin_ + distance_ + index * Granule::bytes),
                      Granule::bytes);
  touched_[index / 64].fetch_or(std::uint64_t{1} << (index % 64), std::memory_order_release);
}

void Arena::touch(std::uint64_t address, std::uint64_t bytes, bool overwritten) {
  if (kind_ == Kind::managed || bytes == 0) return;  // managed memory is filled when it is allocated
  const std::uint64_t offset = address - begin_;
  const std::uint64_t last = (offset + bytes - 1) / Granule::bytes;
  for (std::uint64_t g = offset / Granule::bytes; g <= last; ++g) {
    if (touched(g)) continue;
    const bool whole = g * Granule::bytes >= offset && (g + 1) * Granule::bytes <= offset + bytes;
    touch_granule(g, !(overwritten && whole));
  }
}

Arena::Range Arena::touched_around(std::uint64_t address, std::uint64_t low, std::uint64_t high) const {
  if (kind_ == Kind::managed) return {low, high - low};
  const std::uint64_t first = (low - begin_) / Granule::bytes, last = (high - 1 - begin_) / Granule::bytes;
  std::uint64_t from = (address - begin_) / Granule::bytes, to = from;
  // Whole words of the bitmap at a time where possible.
  while (from > first) {
    if (from % 64 == 0 && from >= first + 64 &&
        touched_[from / 64 - 1].load(std::memory_order_acquire) == ~std::uint64_t{0}) {
      from -= 64;
    } else if (touched(from - 1)) {
      --from;
    } else {
      break;
    }
  }
  while (to < last) {
    if (to % 64 == 63 && to + 64 <= last &&
        touched_[to / 64 + 1].load(std::memory_order_acquire) == ~std::uint64_t{0}) {
      to += 64;
    } else if (touched(to + 1)) {
      ++to;
    } else {
      break;
    }
  }
  const std::uint64_t begin = std::max(low, begin_ + from * Granule::bytes);
  return {begin, std::min(high, begin_ + (to + 1) * Granule::bytes) - begin};
}

void Arena::reset(std::uint64_t address, std::uint64_t bytes) {
  const std::uint64_t end = address + bytes;
  while (address < end) {
    const std::uint64_t index = (address - begin_) / Granule::bytes;
    const std::uint64_t granule_end = begin_ + (index + 1) * Granule::bytes;
    const std::uint64_t part = std::min(end, granule_end) - address;
    const bool whole = part == Granule::bytes;
    std::byte* contents = reinterpret_cast<std::byte*>(address + distance_);
    if (kind_ == Kind::managed) {
      if (whole)
        madvise(contents, part, MADV_DONTNEED);
      else
        fill_with_pattern(contents, part);
    } else if (touched(index)) {
      if (whole) {
        std::lock_guard lock(fill_mutexes_[index % fill_mutexes_.size()]);
        touched_[index / 64].fetch_and(~(std::uint64_t{1} << (index % 64)), std::memory_order_acq_rel);
        madvise(contents, part, MADV_DONTNEED);
        if (const int file = shared_file_; file >= 0)
          fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(address - begin_),
                    static_cast<off_t>(part));
      } else {
        fill_with_pattern(contents, part);
      }
    }
    if (Granule* g = granule(address, false)) {
      SplitWords* split = g->split.load(std::memory_order_acquire);
      const std::uint64_t from = (address - begin_) % Granule::bytes;
      if (whole) {
        if (split) {
          std::lock_guard lock(split->mutex);
          split->words.clear();
        }
        madvise(static_cast<void*>(g), sizeof(Granule), MADV_DONTNEED);
        // A store of nothing would bring a page of the granule back.
        if (split) g->split.store(split, std::memory_order_release);
      } else {
        // Ranges are multiples of 512 bytes: whole words of marks.
        for (std::uint64_t w = from / 64; w < (from + part) / 64; ++w)
          g->initialised[w].store(0, std::memory_order_relaxed);
        for (std::uint64_t w = from / 4; w < (from + part) / 4; ++w) {
          if (g->cells[w].write.load(std::memory_order_relaxed))
            g->cells[w].write.store(0, std::memory_order_relaxed);
          if (g->cells[w].read.load(std::memory_order_relaxed))
            g->cells[w].read.store(0, std::memory_order_relaxed);
        }
        if (split) {
          std::lock_guard lock(split->mutex);
          std::erase_if(split->words,
                        [&](const auto& w) { return w.first >= from / 4 && w.first < (from + part) / 4; });
        }
      }
    }
    address += part;
  }
}

int Arena::share(std::uint64_t address, std::uint64_t bytes) {
  // Granules that nobody has touched would be filled with the pattern later, over what other processes have written.
  touch(address, bytes, false);
  const std::lock_guard lock(share_mutex_);
  if (shared_file_ < 0) {
    const int file = memfd_create("cuda_emulator device memory", MFD_CLOEXEC);
    if (file < 0) fail("memfd_create");
    if (ftruncate(file, static_cast<off_t>(size_)) != 0) {
      close(file);
      fail("ftruncate");
    }
    shared_.resize(size_ / page);
    shared_file_ = file;
  }
  const std::uint64_t end = (address + bytes - 1 - begin_) / page + 1;
  for (std::uint64_t first = (address - begin_) / page; first < end; ++first) {
    if (shared_[first]) continue;
    std::uint64_t last = first;
    while (last < end && !shared_[last]) shared_[last++] = true;
    const std::uint64_t offset = first * page, part = (last - first) * page;
    const std::uint64_t contents = begin_ + distance_ + offset;
    for (std::uint64_t written = 0; written < part;) {
      const ssize_t n = pwrite(shared_file_, reinterpret_cast<const void*>(contents + written),
                               part - written, static_cast<off_t>(offset + written));
      if (n < 0) fail("pwrite");
      written += static_cast<std::uint64_t>(n);
    }
    map_over(contents, part, MAP_SHARED, shared_file_, offset);
    first = last - 1;
  }
  return shared_file_;
}

void Arena::attach(std::uint64_t address, std::uint64_t bytes, int file, std::uint64_t offset) {
  map_over(address + distance_, round_up(bytes, page), MAP_SHARED, file, offset);
  touch(address, round_up(bytes, Granule::bytes), true);
}

void Arena::detach(std::uint64_t address, std::uint64_t bytes) {
  map_over(address + distance_, round_up(bytes, page), MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

Granule* Arena::make_chunk(std::uint64_t chunk) {
  std::lock_guard lock(chunk_mutex_);
  Granule* granules = chunks_[chunk].load(std::memory_order_acquire);
  if (!granules) {
    granules = reinterpret_cast<Granule*>(map(granules_in_chunk * sizeof(Granule), PROT_READ | PROT_WRITE));
    chunks_[chunk].store(granules, std::memory_order_release);
  }
  return granules;
}

Granule* Arena::granule(std::uint64_t address, bool make) {
  const std::uint64_t index = (address - begin_) / Granule::bytes;
  Granule* granules = chunks_[index / granules_in_chunk].load(std::memory_order_acquire);
  if (!granules) {
    if (!make) return nullptr;
    granules = make_chunk(index / granules_in_chunk);
  }
  return granules + index % granules_in_chunk;
}

}  // namespace emulator
