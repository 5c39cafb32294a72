#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "memory/address_space.h"
#include "runtime/api.h"
#include "runtime/copy.h"

/// Hints for managed memory. All of it is always in place, so hints have no effect; they are kept for programs that ask for them.
using namespace emulator;

namespace {

struct Hints {
  bool read_mostly = false;
  cudaMemLocation preferred{cudaMemLocationTypeInvalid, 0}, prefetched{cudaMemLocationTypeInvalid, 0};
  std::set<int> accessed_by;  ///< devices, and cudaCpuDeviceId
};

/// Hints of an allocation: from each address to the next one.
using Ranges = std::map<std::uint64_t, Hints>;

std::mutex& mutex() {
  static auto* const instance = new std::mutex;
  return *instance;
}

struct Range {
  std::uint64_t begin, end;
  Ranges& hints;
};

/// The caller holds the mutex.
Range range_of(const void* pointer, std::size_t bytes) {
  static auto* const all = new std::map<std::uint32_t, Ranges>;  // by number of the allocation
  const auto begin = reinterpret_cast<std::uint64_t>(pointer);
  const Allocation* const allocation = AddressSpace::instance().find(begin);
  require(allocation && allocation->kind == AllocationKind::managed && bytes > 0 &&
          bytes <= allocation->begin + allocation->bytes - begin);
  Ranges& hints = (*all)[allocation->number];
  if (hints.empty()) hints[allocation->begin] = {};
  return {begin, begin + bytes, hints};
}

/// Makes the address the begin of a piece.
Ranges::iterator split(Ranges& hints, std::uint64_t address) {
  const auto before = std::prev(hints.upper_bound(address));
  return before->first == address ? before : hints.emplace(address, before->second).first;
}

template <class F>
void change(const void* pointer, std::size_t bytes, F&& f) {
  const std::lock_guard lock(mutex());
  const Range range = range_of(pointer, bytes);
  const auto end = split(range.hints, range.end);
  for (auto it = split(range.hints, range.begin); it != end; ++it) f(it->second);
}

bool is_host(cudaMemLocation place) {
  return place.type == cudaMemLocationTypeHost || place.type == cudaMemLocationTypeHostNuma ||
         place.type == cudaMemLocationTypeHostNumaCurrent;
}

void check_location(cudaMemLocation place) {
  if (is_host(place)) return;
  require(place.type == cudaMemLocationTypeDevice);
  require(place.id >= 0 && place.id < device_count(), cudaErrorInvalidDevice);
}

int number_of(cudaMemLocation place) {
  if (place.type == cudaMemLocationTypeInvalid) return cudaInvalidDeviceId;
  return is_host(place) ? cudaCpuDeviceId : place.id;
}

void prefetch(const void* pointer, std::size_t bytes, cudaMemLocation place) {
  check_location(place);
  change(pointer, bytes, [&](Hints& hints) { hints.prefetched = place; });
}

void advise(const void* pointer, std::size_t bytes, cudaMemoryAdvise advice, cudaMemLocation place) {
  const bool about_a_place = advice == cudaMemAdviseSetPreferredLocation ||
                             advice == cudaMemAdviseSetAccessedBy || advice == cudaMemAdviseUnsetAccessedBy;
  require(advice >= cudaMemAdviseSetReadMostly && advice <= cudaMemAdviseUnsetAccessedBy);
  if (about_a_place) check_location(place);
  change(pointer, bytes, [&](Hints& hints) {
    switch (advice) {
      case cudaMemAdviseSetReadMostly:
      case cudaMemAdviseUnsetReadMostly:
        hints.read_mostly = advice == cudaMemAdviseSetReadMostly;
        return;
      case cudaMemAdviseSetPreferredLocation:
        hints.preferred = place;
        return;
      case cudaMemAdviseUnsetPreferredLocation:
        hints.preferred = {cudaMemLocationTypeInvalid, 0};
        return;
      case cudaMemAdviseSetAccessedBy:
        hints.accessed_by.insert(number_of(place));
        return;
      case cudaMemAdviseUnsetAccessedBy:
        hints.accessed_by.erase(number_of(place));
        return;
    }
  });
}

/// What all pieces of the range have in common, otherwise the defaults.
Hints common_hints(const void* pointer, std::size_t bytes) {
  const std::lock_guard lock(mutex());
  const Range range = range_of(pointer, bytes);
  auto it = std::prev(range.hints.upper_bound(range.begin));
  Hints result = it->second;
  const auto keep_equal = [](cudaMemLocation& mine, cudaMemLocation other) {
    if (mine.type != other.type || mine.id != other.id) mine = {cudaMemLocationTypeInvalid, 0};
  };
  for (++it; it != range.hints.end() && it->first < range.end; ++it) {
    const Hints& other = it->second;
    result.read_mostly &= other.read_mostly;
    keep_equal(result.preferred, other.preferred);
    keep_equal(result.prefetched, other.prefetched);
    std::erase_if(result.accessed_by, [&](int device) { return !other.accessed_by.contains(device); });
  }
  return result;
}

void get(void* data, std::size_t data_bytes, cudaMemRangeAttribute which, const void* pointer,
         std::size_t bytes) {
  const Hints hints = common_hints(pointer, bytes);
  require(data && data_bytes >= sizeof(int) && data_bytes % sizeof(int) == 0);
  int* const values = static_cast<int*>(data);
  if (which == cudaMemRangeAttributeAccessedBy) {
    const std::size_t count = data_bytes / sizeof(int);
    std::fill_n(values, count, cudaInvalidDeviceId);
    std::copy_n(hints.accessed_by.begin(), std::min(count, hints.accessed_by.size()), values);
    return;
  }
  require(data_bytes == sizeof(int));
  switch (which) {
    case cudaMemRangeAttributeReadMostly:
      *values = hints.read_mostly;
      return;
    case cudaMemRangeAttributePreferredLocation:
      *values = number_of(hints.preferred);
      return;
    case cudaMemRangeAttributeLastPrefetchLocation:
      *values = number_of(hints.prefetched);
      return;
    case cudaMemRangeAttributePreferredLocationType:
      *values = hints.preferred.type;
      return;
    case cudaMemRangeAttributePreferredLocationId:
      *values = hints.preferred.id;
      return;
    case cudaMemRangeAttributeLastPrefetchLocationType:
      *values = hints.prefetched.type;
      return;
    case cudaMemRangeAttributeLastPrefetchLocationId:
      *values = hints.prefetched.id;
      return;
    default:
      throw ApiError{cudaErrorInvalidValue};
  }
}

}  // namespace

extern "C" {

cudaError_t cudaMemPrefetchAsync(const void* pointer, std::size_t bytes, cudaMemLocation place,
                                 unsigned flags, cudaStream_t stream) {
  return api("cudaMemPrefetchAsync", [&] {
    require(flags == 0);
    stream_of(stream);
    prefetch(pointer, bytes, place);
  });
}

cudaError_t cudaMemPrefetchBatchAsync(void** pointers, std::size_t* bytes, std::size_t count,
                                      cudaMemLocation* places, std::size_t* first_of_place,
                                      std::size_t place_count, unsigned long long flags,
                                      cudaStream_t stream) {
  return api("cudaMemPrefetchBatchAsync", [&] {
    require(pointers && bytes && count && places && first_of_place && place_count && flags == 0);
    require(place_count <= count && first_of_place[0] == 0);
    stream_of(stream);
    for (std::size_t i = 0, place = 0; i < count; ++i) {
      if (place + 1 < place_count && first_of_place[place + 1] == i) ++place;
      prefetch(pointers[i], bytes[i], places[place]);
    }
  });
}

cudaError_t cudaMemAdvise(const void* pointer, std::size_t bytes, cudaMemoryAdvise advice,
                          cudaMemLocation place) {
  return api("cudaMemAdvise", [&] { advise(pointer, bytes, advice, place); });
}

cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void* pointer, std::size_t, unsigned) {
  return api("cudaStreamAttachMemAsync", [&] {
    stream_of(stream);
    require(locate(pointer).side == Side::managed);
  });
}

cudaError_t cudaMemRangeGetAttribute(void* data, std::size_t data_bytes, cudaMemRangeAttribute which,
                                     const void* pointer, std::size_t bytes) {
  return api("cudaMemRangeGetAttribute", [&] { get(data, data_bytes, which, pointer, bytes); });
}

cudaError_t cudaMemRangeGetAttributes(void** data, std::size_t* data_bytes, cudaMemRangeAttribute* which,
                                      std::size_t count, const void* pointer, std::size_t bytes) {
  return api("cudaMemRangeGetAttributes", [&] {
    require(data && data_bytes && which && count);
    for (std::size_t i = 0; i < count; ++i) get(data[i], data_bytes[i], which[i], pointer, bytes);
  });
}
}
