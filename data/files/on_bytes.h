#pragma once
#include <cstdint>
#include <functional>

namespace nemocube {

/// Called now and then by a function that reads or writes many bytes, one call at a time: `done` of `total`
/// bytes. Where several ranks read or write together, `total` counts the bytes of all ranks, and `done` is
/// estimated by the progress of this rank.
using OnBytes = std::function<void(std::int64_t done, std::int64_t total)>;

}  // namespace nemocube
