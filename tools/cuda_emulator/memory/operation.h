#pragma once
#include <cstdint>

/// Numbers of operations and streams: what memory and launches remember of them (checks/order.h holds their order).
namespace emulator {

using OperationId = std::uint32_t;  ///< 0: before everything
using StreamKey = std::uint32_t;    ///< 0: the host thread; streams count from 1 and are never reused

}  // namespace emulator
