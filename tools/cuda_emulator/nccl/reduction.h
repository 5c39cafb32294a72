#pragma once
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace emulator::nccl {

/// Bytes of an element, 0 for a number that is no type.
std::size_t type_bytes(int type);
/// "f32", "sum": for messages.
const char* type_name(int type);
const char* operation_name(int operation);

/// In Call::operation: inputs are multiplied by the rank's factor, then summed.
constexpr int pre_multiplied_sum = ncclNumOps;

/// to[i] = operation over all inputs[r][i] in the order of ranks. Integers wrap in their type, 16-bit and 8-bit floats accumulate in f32
/// and are rounded once. ncclAvg: the sum divided by the number of inputs. `factors`: bits of each rank's factor in `type`, only for
/// pre_multiplied_sum. `to` may be one of the inputs.
void reduce(int type, int operation, std::span<const std::byte* const> inputs,
            std::span<const std::uint64_t> factors, std::byte* to, std::size_t count);

}  // namespace emulator::nccl
