#include "runtime/copy.h"

#include <cstring>

#include "checks/global_shadow.h"
#include "machine/launch.h"
#include "machine/report.h"
#include "runtime/api.h"
#include "runtime/capture.h"
#include "runtime/registration.h"
#include "timeline/recorder.h"

namespace emulator {
namespace {

std::uint64_t first_byte(const Region& r, std::uint64_t row, std::uint64_t slice) {
  return r.address + slice * r.slice_pitch + row * r.pitch;
}

/// Calls f(offset of the destination's row, offset of the source's row, bytes) for the longest pieces that are contiguous on both sides.
template <class F>
void for_pieces(const Extent& e, const Region& a, const Region& b, F&& f) {
  const bool whole_rows = e.rows == 1 || (a.pitch == e.width && b.pitch == e.width);
  const std::uint64_t slice = e.width * e.rows;
  if (whole_rows && (e.slices == 1 || (a.slice_pitch == slice && b.slice_pitch == slice))) {
    f(a.address, b.address, e.bytes());
    return;
  }
  for (std::uint64_t z = 0; z < e.slices; ++z) {
    if (whole_rows) {
      f(first_byte(a, 0, z), first_byte(b, 0, z), slice);
      continue;
    }
    for (std::uint64_t y = 0; y < e.rows; ++y) f(first_byte(a, y, z), first_byte(b, y, z), e.width);
  }
}

bool host_side(Side side) { return side == Side::pageable || side == Side::pinned; }

/// Bytes from the first to behind the last byte of the region.
std::uint64_t span_of(const Region& r, const Extent& e) {
  return (e.slices - 1) * r.slice_pitch + (e.rows - 1) * r.pitch + e.width;
}

std::string range_text(std::uint64_t address, std::uint64_t bytes, bool write, const std::string& what) {
  return what + (write ? " writes " : " reads ") + std::to_string(bytes) +
         " bytes: " + AddressSpace::instance().describe(address, bytes);
}

/// Where the bytes lie on the host when work runs. nullptr after a report.
std::byte* host_of(std::uint64_t address, std::uint64_t bytes, bool write, const std::string& what) {
  const bool known = AddressSpace::instance().find(address) != nullptr;
  if (!known && !freed_device_memory(address)) return reinterpret_cast<std::byte*>(address);
  const Translation t = AddressSpace::instance().translate(address, bytes, write);
  if (!t.host)
    report(Severity::error, t.after_free ? "use-after-free" : "out-of-bounds",
           range_text(address, bytes, write, what));
  return t.host;
}

/// The argument checks of one side.
void check_side(const Region& region, const Extent& extent, bool write, bool must_be_device,
                const char* api_name) {
  const std::uint64_t bytes = span_of(region, extent);
  AddressSpace& space = AddressSpace::instance();
  const bool known = space.find(region.address) != nullptr;
  const bool freed = !known && freed_device_memory(region.address);
  if (!known && !freed && !must_be_device) return;  // pageable memory of the host
  if (space.holds(region.address, bytes))
    return;  // rows may lie far apart: only the work itself touches them
  report(Severity::error, freed ? "use-after-free" : "out-of-bounds",
         range_text(region.address, bytes, write, api_name));
  throw ApiError{cudaErrorInvalidValue};
}

void note_unwritten(std::uint64_t address, std::uint64_t bytes, const std::string& what) {
  AddressSpace& space = AddressSpace::instance();
  const std::optional<std::uint64_t> first = space.first_uninitialised(address, bytes);
  if (!first) return;
  report(note_unless_strict(), "host-copy-of-unwritten",
         what + " gives the host memory that was never written: " + space.describe(*first));
}

}  // namespace

Location locate(const void* pointer) {
  const Allocation* const allocation =
      AddressSpace::instance().find(reinterpret_cast<std::uint64_t>(pointer));
  if (!allocation) return {};
  switch (allocation->kind) {
    case AllocationKind::pinned_host:
    case AllocationKind::registered_host:
      return {Side::pinned, allocation->device};
    case AllocationKind::managed:
      return {Side::managed, allocation->device};
    default:
      return {Side::device, allocation->device};
  }
}

bool freed_device_memory(std::uint64_t address) {
  return AddressSpace::instance().translate(address, 1).after_free;
}

Box box_of(const cudaPitchedPtr& destination, cudaPos to, const cudaPitchedPtr& source, cudaPos from,
           cudaExtent extent) {
  const auto region = [](const cudaPitchedPtr& p, cudaPos at) {
    const std::uint64_t slice = p.pitch * p.ysize;
    return Region{reinterpret_cast<std::uint64_t>(p.ptr) + at.z * slice + at.y * p.pitch + at.x, p.pitch,
                  slice};
  };
  return {region(destination, to), region(source, from), {extent.width, extent.height, extent.depth}};
}

const Allocation& symbol_memory(const void* symbol) {
  const RegisteredVariable* const variable = find_variable(symbol);
  require(variable, cudaErrorInvalidSymbol);
  const Allocation* const allocation = variable->on(current_device());
  require(allocation, cudaErrorInvalidSymbol);
  return *allocation;
}

Region symbol_region(const void* symbol, std::size_t offset, std::size_t bytes) {
  const Allocation& memory = symbol_memory(symbol);
  require(offset <= memory.bytes && bytes <= memory.bytes - offset);
  return {memory.begin + offset};
}

void check_copy(const Region& destination, const Region& source, const Extent& extent, cudaMemcpyKind kind,
                const char* api_name) {
  require(static_cast<unsigned>(kind) <= cudaMemcpyDefault, cudaErrorInvalidMemcpyDirection);
  if (extent.empty()) return;
  require(destination.address && source.address);
  require(extent.rows == 1 || (destination.pitch >= extent.width && source.pitch >= extent.width),
          cudaErrorInvalidPitchValue);
  check_side(destination, extent, true, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
             api_name);
  check_side(source, extent, false, kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice,
             api_name);
}

void check_fill(const Region& destination, const Extent& extent, const char* api_name) {
  if (extent.empty()) return;
  require(destination.address);
  require(extent.rows == 1 || destination.pitch >= extent.width, cudaErrorInvalidPitchValue);
  check_side(destination, extent, true, true, api_name);
}

CopyWork::CopyWork(Region destination_, Region source_, Extent extent_, const char* api_name)
    : destination(destination_), source(source_), extent(extent_), what_(api_name) {}

void CopyWork::stage() {
  staged_.resize(extent.bytes());
  std::byte* out = staged_.data();
  for_pieces(extent, source, source, [&](std::uint64_t from, std::uint64_t, std::uint64_t bytes) {
    std::memcpy(out, reinterpret_cast<const void*>(from), bytes);
    out += bytes;
  });
}

/// `staged`: the source lies on the host, wherever it was.
void CopyWork::add_to_timeline(bool staged) const {
  if (!timeline::recording()) return;
  const bool from_host = staged || host_side(locate(reinterpret_cast<void*>(source.address)).side),
             to_host = host_side(locate(reinterpret_cast<void*>(destination.address)).side);
  timeline::Load load;
  load.kind = from_host ? timeline::Load::Kind::upload
              : to_host ? timeline::Load::Kind::download
                        : timeline::Load::Kind::local;
  load.bytes = static_cast<double>(extent.bytes()) * (from_host || to_host ? 1 : 2);
  timeline::set_load(load);
}

int CopyWork::run(OperationId operation) {
  if (extent.empty()) return 0;
  AddressSpace& space = AddressSpace::instance();
  const std::byte* staged = staged_.empty() ? nullptr : staged_.data();
  // Rows of staged data lie close together, whatever the source's pitch was.
  const Region packed{0, extent.width, extent.width * extent.rows};
  add_to_timeline(staged);
  int error = 0;
  for_pieces(extent, destination, staged ? packed : source,
             [&](std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
               if (error) return;
               std::byte* const out = host_of(to, bytes, true, what_);
               const std::byte* const in = staged ? staged + from : host_of(from, bytes, false, what_);
               if (!out || !in) {
                 error = cudaErrorIllegalAddress;
                 return;
               }
               const Side to_side = locate(reinterpret_cast<void*>(to)).side;
               const Side from_side = staged ? Side::pageable : locate(reinterpret_cast<void*>(from)).side;
               if (checks_enabled()) {
                 if (from_side != Side::pageable) check_range(operation, from, bytes, false, what_.c_str());
                 if (to_side != Side::pageable) check_range(operation, to, bytes, true, what_.c_str());
                 if (from_side == Side::device && host_side(to_side)) note_unwritten(from, bytes, what_);
               }
               std::memmove(out, in, bytes);
               if (to_side == Side::device && from_side == Side::device) {
                 space.copy_initialised(to, from, bytes);
               } else if (to_side == Side::device) {
                 space.mark_initialised(to, bytes);
               }
             });
  return error;
}

int FillWork::run(OperationId operation) {
  if (extent.empty()) return 0;
  timeline::add_bytes(static_cast<double>(extent.bytes()));
  int error = 0;
  for_pieces(extent, destination, destination, [&](std::uint64_t to, std::uint64_t, std::uint64_t bytes) {
    if (error) return;
    std::byte* const out = host_of(to, bytes, true, what_);
    if (!out) {
      error = cudaErrorIllegalAddress;
      return;
    }
    if (checks_enabled()) check_range(operation, to, bytes, true, what_.c_str());
    if (element_bytes == 1) {
      std::memset(out, static_cast<int>(value), bytes);
    } else {
      for (std::uint64_t i = 0; i < bytes; i += element_bytes) std::memcpy(out + i, &value, element_bytes);
    }
    if (!host_side(locate(reinterpret_cast<void*>(to)).side))
      AddressSpace::instance().mark_initialised(to, bytes);
  });
  return error;
}

void copy(Stream& stream, Region destination, Region source, Extent extent, cudaMemcpyKind kind,
          bool blocking, const char* api_name) {
  check_copy(destination, source, extent, kind, api_name);
  auto work = std::make_shared<CopyWork>(destination, source, extent, api_name);
  work->kind = kind;
  if (capturing(stream)) {
    if (blocking) forbid_in_capture(stream);
    submit(stream, std::move(work));
    return;
  }
  if (blocking) forbid_in_capture();
  if (extent.empty()) return;
  Scheduler& scheduler = Scheduler::instance();
  const Side to = locate(reinterpret_cast<void*>(destination.address)).side;
  const Side from = locate(reinterpret_cast<void*>(source.address)).side;
  if (!blocking && from == Side::pageable && !host_side(to)) {
    // The program may change the source once the call has returned; the transfer itself comes later. CUDA permits the same of a
    // blocking copy, but programs that copy and go on in a non-blocking stream are many, and no GPU is known to fail them.
    work->stage();
    submit(stream, std::move(work));
    return;
  }
  const bool to_host = host_side(to);
  const bool waits = blocking ? host_side(from) || to_host || from == Side::managed || to == Side::managed
                              : to == Side::pageable;
  const OperationPtr operation = submit(stream, std::move(work));
  if (waits) scheduler.wait({operation});
}

void fill(Stream& stream, Region destination, Extent extent, std::uint32_t value, std::uint32_t element_bytes,
          const char* api_name) {
  check_fill(destination, extent, api_name);
  submit(stream, std::make_shared<FillWork>(destination, extent, value, element_bytes, api_name));
}

}  // namespace emulator
