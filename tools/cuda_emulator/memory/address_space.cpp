#include "memory/address_space.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <shared_mutex>
#include <stdexcept>

#include "memory/arena.h"

namespace emulator {
namespace {

constexpr int max_devices = 64;

std::uint64_t device_capacity() {
  const char* text = std::getenv("CUDA_EMULATOR_MEMORY");
  const std::uint64_t bytes = text ? std::strtoull(text, nullptr, 0) : 0;
  return bytes ? bytes : std::uint64_t{80} << 30;
}

/// What an allocation takes from its arena, the gap behind it included.
Arena::Range slot_of(const Allocation& a) {
  const auto up = [](std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; };
  if (a.kind != AllocationKind::imported) return {a.begin, up(a.bytes, Arena::alignment) + Arena::gap};
  // Imported memory begins anywhere in the first page of its own granules.
  const std::uint64_t begin = a.begin / Granule::bytes * Granule::bytes;
  return {begin, up(a.begin + a.bytes - begin, Granule::bytes) + Arena::gap};
}

bool is_host(AllocationKind kind) {
  return kind == AllocationKind::pinned_host || kind == AllocationKind::registered_host;
}

}  // namespace

struct AddressSpace::State {
  mutable std::shared_mutex mutex;
  std::map<std::uint64_t, std::unique_ptr<Allocation>>
      allocations;  ///< by first address; live ones and freed ones in quarantine
  std::uint32_t count = 0;
  std::array<std::atomic<std::uint64_t>, max_devices>
      peers{};  ///< by device: whose memory it reaches, a bit each
  std::array<std::atomic<Arena*>, max_devices + 1> arenas{};  ///< by device; then that of managed memory
  std::atomic<int> first_unused{0};  ///< arenas[i] is null for i >= first_unused, but for the last one

  Arena* arena_of(std::uint64_t address) const {
    const int devices = first_unused.load(std::memory_order_acquire);
    for (int i = 0; i < devices; ++i) {
      Arena* arena = arenas[i].load(std::memory_order_acquire);
      if (arena && arena->holds(address)) return arena;
    }
    Arena* managed = arenas[max_devices].load(std::memory_order_acquire);
    return managed && managed->holds(address) ? managed : nullptr;
  }
  /// The caller holds the mutex.
  Arena* make_arena(AllocationKind kind, int device) {
    const bool managed = kind == AllocationKind::managed;
    const int index = managed ? max_devices : device;
    if (!arenas[index]) {
      arenas[index] = new Arena(managed ? Arena::Kind::managed : Arena::Kind::device, device_capacity());
      if (!managed && first_unused <= index) first_unused = index + 1;
    }
    return arenas[index];
  }
  /// The range may have belonged to others before: their records go. The caller holds the mutex.
  void forget(const Arena::Range& range) {
    auto old = allocations.lower_bound(range.begin);
    if (old != allocations.begin() && std::prev(old)->first + std::prev(old)->second->bytes > range.begin)
      --old;
    while (old != allocations.end() && old->first < range.begin + range.bytes) old = allocations.erase(old);
  }
  /// The allocation, live or freed, with the last first address <= address; the caller holds the mutex.
  Allocation* before(std::uint64_t address) const {
    const auto it = allocations.upper_bound(address);
    return it == allocations.begin() ? nullptr : std::prev(it)->second.get();
  }
  Allocation* holder(std::uint64_t address) const {
    Allocation* a = before(address);
    return a && address - a->begin < a->bytes ? a : nullptr;
  }
  /// The allocation that holds the address, or the one whose end or begin is nearest.
  Allocation* nearest(std::uint64_t address) const {
    Allocation* low = before(address);
    const auto it = allocations.upper_bound(address);
    Allocation* high = it == allocations.end() ? nullptr : it->second.get();
    if (!low || !high) return low ? low : high;
    const std::uint64_t end = low->begin + low->bytes;
    return address < end || address - end <= high->begin - address ? low : high;
  }
};

AddressSpace& AddressSpace::instance() {
  static AddressSpace* const space =
      new AddressSpace;  // never destroyed: host threads may still use addresses while the process exits
  return *space;
}

AddressSpace::AddressSpace() : state_(std::make_unique<State>()) {}

Allocation* AddressSpace::allocate(AllocationKind kind, int device, std::uint64_t bytes, std::string label,
                                   std::uint64_t again) {
  if (device < 0 || device >= max_devices)
    throw std::invalid_argument("device number " + std::to_string(device));
  auto allocation = std::make_unique<Allocation>();
  Allocation* result = allocation.get();
  Arena* arena = nullptr;
  {
    std::unique_lock lock(state_->mutex);
    try {
      arena = state_->make_arena(kind, device);
    } catch (const std::runtime_error& error) {
      lock.unlock();
      report_no_addresses(error.what());
      return nullptr;
    }
    const std::optional<Arena::Range> range = again ? arena->take_again(again, bytes) : arena->take(bytes);
    if (!range) return nullptr;
    state_->forget(*range);
    allocation->begin = range->begin;
    allocation->bytes = bytes;
    allocation->kind = kind;
    allocation->device = device;
    allocation->number = ++state_->count;
    allocation->label = std::move(label);
    state_->allocations[range->begin] = std::move(allocation);
  }
  if (kind == AllocationKind::managed) {
    std::uint32_t* words = reinterpret_cast<std::uint32_t*>(result->begin);
    std::fill(words, words + (bytes + 3) / 4, fill_pattern);
  }
  return result;
}

Allocation* AddressSpace::add_host(AllocationKind kind, void* begin, std::uint64_t bytes, std::string label) {
  std::unique_lock lock(state_->mutex);
  auto allocation = std::make_unique<Allocation>();
  allocation->begin = reinterpret_cast<std::uint64_t>(begin);
  allocation->bytes = bytes;
  allocation->kind = kind;
  allocation->number = ++state_->count;
  allocation->label = std::move(label);
  auto& slot = state_->allocations[allocation->begin];
  slot = std::move(allocation);
  return slot.get();
}

void AddressSpace::free(Allocation& allocation) {
  if (is_host(allocation.kind)) {
    std::unique_lock lock(state_->mutex);
    state_->allocations.erase(allocation.begin);
    generation_.fetch_add(1, std::memory_order_acq_rel);
    return;
  }
  Arena& arena = *state_->arena_of(allocation.begin);
  const Arena::Range slot = slot_of(allocation);
  allocation.live = false;
  generation_.fetch_add(1, std::memory_order_acq_rel);
  if (allocation.kind == AllocationKind::imported)
    arena.detach(slot.begin, allocation.begin + allocation.bytes - slot.begin);
  arena.reset(slot.begin, slot.bytes);
  std::unique_lock lock(state_->mutex);
  arena.give_back(slot);
}

SharedPlace AddressSpace::share(Allocation& allocation) {
  Arena& arena = *state_->arena_of(allocation.begin);
  const int file = arena.share(allocation.begin, allocation.bytes);
  mark_initialised(allocation.begin, allocation.bytes);
  allocation.shared = true;
  return {file, allocation.begin - arena.begin()};
}

Allocation* AddressSpace::import(int device, const SharedPlace& place, std::uint64_t bytes,
                                 std::string label) {
  constexpr std::uint64_t page = 4096;
  const std::uint64_t in_page = place.offset % page;
  auto allocation = std::make_unique<Allocation>();
  allocation->begin = in_page;
  allocation->bytes = bytes;
  allocation->kind = AllocationKind::imported;
  allocation->device = device;
  allocation->label = std::move(label);
  std::unique_lock lock(state_->mutex);
  Arena* const arena = state_->make_arena(AllocationKind::imported, device);
  const std::optional<Arena::Range> range =
      arena->take(slot_of(*allocation).bytes - Arena::gap, Granule::bytes);
  if (!range) return nullptr;
  state_->forget(*range);
  arena->attach(range->begin, in_page + bytes, place.file, place.offset - in_page);
  allocation->begin += range->begin;
  allocation->number = ++state_->count;
  Allocation* const result = allocation.get();
  state_->allocations[result->begin] = std::move(allocation);
  lock.unlock();
  mark_initialised(result->begin, bytes);
  return result;
}

Allocation* AddressSpace::find(std::uint64_t address) {
  std::shared_lock lock(state_->mutex);
  Allocation* a = state_->holder(address);
  return a && a->live ? a : nullptr;
}

bool AddressSpace::holds(std::uint64_t address, std::uint64_t bytes) {
  std::shared_lock lock(state_->mutex);
  const Allocation* const a = state_->holder(address);
  return a && a->live && bytes <= a->begin + a->bytes - address;
}

bool AddressSpace::written_from_outside(std::uint64_t address) {
  std::shared_lock lock(state_->mutex);
  const Allocation* const a = state_->holder(address);
  return a && (a->shared || a->kind == AllocationKind::managed || a->kind == AllocationKind::pinned_host ||
               a->kind == AllocationKind::registered_host || a->kind == AllocationKind::imported);
}

Allocation* AddressSpace::starting_at(std::uint64_t address) {
  std::shared_lock lock(state_->mutex);
  const auto it = state_->allocations.find(address);
  return it != state_->allocations.end() && it->second->live ? it->second.get() : nullptr;
}

Translation AddressSpace::translate(std::uint64_t address, std::uint64_t bytes, bool overwritten) {
  Translation result;
  {
    std::shared_lock lock(state_->mutex);
    Allocation* a = state_->holder(address);
    // An empty range may lie anywhere in an allocation, its end included.
    if (!a && bytes == 0) {
      Allocation* low = state_->before(address);
      if (low && address == low->begin + low->bytes) a = low;
    }
    if (!a) {
      result.allocation = state_->nearest(address);
      return result;
    }
    result.allocation = a;
    result.after_free = !a->live;
    if (!a->live || bytes > a->begin + a->bytes - address) return result;
  }
  Arena* arena = is_host(result.allocation->kind) ? nullptr : state_->arena_of(address);
  if (arena) arena->touch(address, bytes, overwritten);
  result.host = reinterpret_cast<std::byte*>(address + (arena ? arena->distance() : 0));
  return result;
}

AddressSpace::Window AddressSpace::window(std::uint64_t address) {
  Window w;
  Arena* arena = nullptr;
  {
    std::shared_lock lock(state_->mutex);
    const Allocation* a = state_->holder(address);
    if (!a || !a->live) return {};
    w = {a->begin, a->bytes, 0};
    if (is_host(a->kind)) return w;
    arena = state_->arena_of(address);
  }
  arena->touch(address, 1, false);
  const Arena::Range range = arena->touched_around(address, w.begin, w.begin + w.size);
  return {range.begin, range.bytes, arena->distance()};
}

std::string AddressSpace::describe(std::uint64_t address, std::uint64_t bytes) {
  std::shared_lock lock(state_->mutex);
  const Allocation* a = state_->nearest(address);
  if (!a) return "the program has allocated nothing";
  const auto count = [](std::uint64_t n) { return std::to_string(n) + (n == 1 ? " byte" : " bytes"); };
  const std::string name =
      "allocation " + std::to_string(a->number) + " (" + a->label + ", " + count(a->bytes) + ")";
  const std::string freed = a->live ? "" : ", which was freed";
  constexpr std::uint64_t near = std::uint64_t{1} << 30;
  const std::uint64_t offset = address - a->begin;
  if (address < a->begin ? a->begin - address > near : offset > a->bytes + near)
    return "no allocation lies near";
  if (address < a->begin) return count(a->begin - address) + " before " + name + freed;
  if (offset >= a->bytes) return count(offset - a->bytes) + " past the end of " + name + freed;
  std::string text = "byte " + std::to_string(offset) + " of " + name + freed;
  if (a->live && bytes > a->bytes - offset) {
    text += ", " + std::to_string(bytes - (a->bytes - offset)) + " of " + count(bytes) + " lie past its end";
  }
  return text;
}

std::vector<Allocation*> AddressSpace::live() const {
  std::shared_lock lock(state_->mutex);
  std::vector<Allocation*> result;
  for (const auto& [begin, allocation] : state_->allocations) {
    if (allocation->live) result.push_back(allocation.get());
  }
  return result;
}

Granule* AddressSpace::granule(std::uint64_t address, bool make) {
  Arena* arena = state_->arena_of(address);
  if (!arena) return nullptr;
  if (make) arena->touch(address, 1, false);
  return arena->granule(address, make);
}

void AddressSpace::usage(int device, std::uint64_t& free_bytes, std::uint64_t& total_bytes) const {
  std::shared_lock lock(state_->mutex);
  const Arena* arena = device >= 0 && device < max_devices ? state_->arenas[device].load() : nullptr;
  total_bytes = arena ? arena->capacity() : device_capacity();
  free_bytes = total_bytes - (arena ? arena->used() : 0);
}

void AddressSpace::set_peer_access(int device, int owner, bool allowed) {
  const std::uint64_t bit = std::uint64_t{1} << owner;
  if (allowed)
    state_->peers.at(static_cast<std::size_t>(device)) |= bit;
  else
    state_->peers.at(static_cast<std::size_t>(device)) &= ~bit;
}

bool AddressSpace::reaches(int device, const Allocation& a) const {
  if (a.device == device) return true;
  switch (a.kind) {
    case AllocationKind::device:
    case AllocationKind::variable:
      return state_->peers[static_cast<std::size_t>(device)] >> a.device & 1;
    case AllocationKind::stream_ordered:
      return a.guests >> device & 1;
    default:
      return true;
  }
}

void AddressSpace::mark_initialised(std::uint64_t address, std::uint64_t bytes) {
  Arena* arena = state_->arena_of(address);
  if (!arena || arena->kind() == Arena::Kind::managed) return;
  while (bytes) {
    const std::uint64_t bit = address % 64, part = std::min<std::uint64_t>(bytes, 64 - bit);
    const std::uint64_t mask = part == 64 ? ~std::uint64_t{0} : ((std::uint64_t{1} << part) - 1) << bit;
    std::atomic<std::uint64_t>& marks =
        arena->granule(address, true)->initialised[address % Granule::bytes / 64];
    if (part == 64)
      marks.store(mask, std::memory_order_relaxed);
    else
      marks.fetch_or(mask, std::memory_order_relaxed);
    address += part;
    bytes -= part;
  }
}

void AddressSpace::mark_uninitialised(std::uint64_t address, std::uint64_t bytes) {
  Arena* arena = state_->arena_of(address);
  if (!arena || arena->kind() == Arena::Kind::managed) return;
  for (; bytes; ++address, --bytes)
    arena->granule(address, true)
        ->initialised[address % Granule::bytes / 64]
        .fetch_and(~(std::uint64_t{1} << address % 64), std::memory_order_relaxed);
}

namespace {

/// Marks of `bytes` (at most 64) bytes from the address on; bit 0: the first.
std::uint64_t marks_of(Arena& arena, std::uint64_t address, std::uint64_t bytes) {
  const auto word = [&](std::uint64_t at) -> std::uint64_t {
    const Granule* g = arena.granule(at, false);
    return g ? g->initialised[at % Granule::bytes / 64].load(std::memory_order_relaxed) : 0;
  };
  const std::uint64_t bit = address % 64;
  std::uint64_t marks = word(address) >> bit;
  if (bit + bytes > 64) marks |= word(address + 64 - bit) << (64 - bit);
  return bytes == 64 ? marks : marks & ((std::uint64_t{1} << bytes) - 1);
}

}  // namespace

void AddressSpace::copy_initialised(std::uint64_t destination, std::uint64_t source, std::uint64_t bytes) {
  Arena* to = state_->arena_of(destination);
  if (!to || to->kind() == Arena::Kind::managed) return;
  Arena* from = state_->arena_of(source);
  if (!from || from->kind() == Arena::Kind::managed) return mark_initialised(destination, bytes);
  while (bytes) {
    const std::uint64_t bit = destination % 64, part = std::min<std::uint64_t>(bytes, 64 - bit);
    const std::uint64_t mask = part == 64 ? ~std::uint64_t{0} : ((std::uint64_t{1} << part) - 1) << bit;
    const std::uint64_t marks = marks_of(*from, source, part) << bit;
    std::atomic<std::uint64_t>& word =
        to->granule(destination, true)->initialised[destination % Granule::bytes / 64];
    if (part == 64) {
      word.store(marks, std::memory_order_relaxed);
    } else {
      word.fetch_and(~mask | marks, std::memory_order_relaxed);
      word.fetch_or(marks, std::memory_order_relaxed);
    }
    destination += part;
    source += part;
    bytes -= part;
  }
}

std::optional<std::uint64_t> AddressSpace::first_uninitialised(std::uint64_t address, std::uint64_t bytes) {
  Arena* arena = state_->arena_of(address);
  if (!arena || arena->kind() == Arena::Kind::managed) return std::nullopt;
  while (bytes) {
    const std::uint64_t part = std::min<std::uint64_t>(bytes, 64 - address % 64);
    const std::uint64_t all = part == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << part) - 1;
    const std::uint64_t missing = ~marks_of(*arena, address, part) & all;
    if (missing) return address + static_cast<std::uint64_t>(std::countr_zero(missing));
    address += part;
    bytes -= part;
  }
  return std::nullopt;
}

std::uint32_t AddressSpace::uninitialised(std::uint64_t address, std::uint32_t bytes) {
  std::uint32_t mask = 0;
  for (std::uint32_t k = 0; k < bytes; ++k) {
    const auto first = first_uninitialised(address + k, bytes - k);
    if (!first) break;
    k = static_cast<std::uint32_t>(*first - address);
    mask |= 1u << k;
  }
  return mask;
}

std::byte* TranslationCache::refill(std::uint64_t address, std::uint64_t bytes) {
  AddressSpace& space = AddressSpace::instance();
  if (const std::uint64_t now = space.generation(); now != generation_) {
    clear();
    generation_ = now;
  }
  AddressSpace::Window found;
  std::size_t place = 1;
  for (; place < windows_.size(); ++place) {
    const AddressSpace::Window& w = windows_[place];
    const std::uint64_t offset = address - w.begin;
    if (offset < w.size && bytes <= w.size - offset) break;
  }
  if (place < windows_.size()) {
    found = windows_[place];
  } else {
    found = space.window(address);
    // An access that ends in a granule that nobody has touched.
    if (found.size && bytes > found.size - (address - found.begin)) {
      if (!space.translate(address, bytes).host) return nullptr;
      found = space.window(address);
    }
    if (!found.size) return nullptr;
    // A window that has grown takes its old place.
    for (place = 0; place + 1 < windows_.size(); ++place) {
      const AddressSpace::Window& w = windows_[place];
      if (w.begin >= found.begin && w.begin < found.begin + found.size) break;
    }
  }
  std::copy_backward(windows_.begin(), windows_.begin() + place, windows_.begin() + place + 1);
  windows_[0] = found;
  return reinterpret_cast<std::byte*>(address + found.delta);
}

}  // namespace emulator
