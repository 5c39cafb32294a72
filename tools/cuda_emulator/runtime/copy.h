#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "memory/address_space.h"
#include "runtime/scheduler.h"

namespace emulator {

/// Where one side of a copy lies.
enum class Side : std::uint8_t { pageable, pinned, managed, device };
struct Location {
  Side side = Side::pageable;
  int device = 0;
};
Location locate(const void* pointer);
/// Whether the address lies in device memory that was allocated once and is free now.
bool freed_device_memory(std::uint64_t address);

/// Rows of bytes in memory: `rows` rows of `width` bytes in each of `slices` slices.
struct Region {
  std::uint64_t address = 0;
  std::uint64_t pitch = 0, slice_pitch = 0;  ///< bytes from row to row, from slice to slice
};
struct Extent {
  std::uint64_t width = 0, rows = 1, slices = 1;
  bool empty() const { return width == 0 || rows == 0 || slices == 0; }
  std::uint64_t bytes() const { return width * rows * slices; }
};

/// Both sides of a copy in the API's three-dimensional form.
struct Box {
  Region destination, source;
  Extent extent;
};
Box box_of(const cudaPitchedPtr& destination, cudaPos to, const cudaPitchedPtr& source, cudaPos from,
           cudaExtent extent);

/// The memory of a variable on the current device, and a part of it. Throw ApiError.
const Allocation& symbol_memory(const void* symbol);
Region symbol_region(const void* symbol, std::size_t offset, std::size_t bytes);

/// A copy between any two places. Checks are made when the copy runs.
class CopyWork : public Work {
 public:
  CopyWork(Region destination, Region source, Extent extent, const char* api_name);
  int run(OperationId operation) override;
  std::string name() const override { return what_; }
  timeline::HostStep::Kind call() const override { return timeline::HostStep::Kind::copy; }
  /// Reads the (pageable) source now.
  void stage();

  Region destination, source;
  Extent extent;
  cudaMemcpyKind kind = cudaMemcpyDefault;  ///< as the program said

 private:
  void add_to_timeline(bool staged) const;

  std::string what_;
  std::vector<std::byte> staged_;
};

/// Fills rows with a value of 1, 2 or 4 bytes.
class FillWork : public Work {
 public:
  FillWork(Region destination_, Extent extent_, std::uint32_t value_, std::uint32_t element_bytes_,
           const char* api_name)
      : destination(destination_),
        extent(extent_),
        value(value_),
        element_bytes(element_bytes_),
        what_(api_name) {}
  int run(OperationId operation) override;
  std::string name() const override { return what_; }
  timeline::HostStep::Kind call() const override { return timeline::HostStep::Kind::copy; }

  Region destination;
  Extent extent;
  std::uint32_t value, element_bytes;

 private:
  std::string what_;
};

/// Checks the arguments of a copy as far as the call can: kinds against pointers, bounds, freed memory. Throws ApiError.
void check_copy(const Region& destination, const Region& source, const Extent& extent, cudaMemcpyKind kind,
                const char* api_name);
void check_fill(const Region& destination, const Extent& extent, const char* api_name);

/// Sends a copy into a stream with the rules of the API for what the host may do when (CUDA runtime API, "API synchronization behavior"). `blocking`: the
/// call without Async.
void copy(Stream& stream, Region destination, Region source, Extent extent, cudaMemcpyKind kind,
          bool blocking, const char* api_name);
void fill(Stream& stream, Region destination, Extent extent, std::uint32_t value, std::uint32_t element_bytes,
          const char* api_name);

}  // namespace emulator
