#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "core/allocation_owner.h"
#include "core/cuda/device.cuh"
#include "core/cuda/graph.h"
#include "core/tensor.h"

/// Kernels that treat many tensors by one launch, such as the step of an optimizer: a table on the device has
/// a row for each tensor, with a member `first_block`: its first block of the launch. Every row has at least
/// one block.
namespace nemocube::cuda {

/// In a kernel: the last of `count` rows, at least one, that begins at this block or before.
template <class Row>
__device__ const Row& row_of_block(const Row* rows, int count) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (rows[middle].first_block <= blockIdx.x ? low : high) = middle;
  }
  return rows[low];
}

/// Keeps the table of the call before, because addresses of parameters seldom change.
template <class Row>
class RangeTable {
 public:
  explicit RangeTable(const char* owner) : owner_(owner) {}

  const Row* on_device(std::vector<Row> rows) {
    if (rows != rows_) {
      const AllocationOwner owner(owner_);
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(rows.data());
      const std::vector<std::uint8_t> copy(bytes, bytes + rows.size() * sizeof(Row));
      device_ = Tensor::from(copy, {std::ssize(copy)}).to(Device::cuda_number(device_index()));
      rows_ = std::move(rows);
    }
    if (Capture* const capture = Capture::current()) capture->keep(device_);
    return static_cast<const Row*>(device_.address());
  }

 private:
  const char* owner_;
  std::vector<Row> rows_;
  Tensor device_;
};

}  // namespace nemocube::cuda
