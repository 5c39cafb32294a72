#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "parallel/comm/communicator.h"

namespace nemocube {

/// The result of writing a trace, on rank 0.
struct TraceFileResult {
  std::int64_t bytes = 0;
  std::string problem;  ///< why there is no file; empty after success
};

/// All ranks together: writes one file with the events of all ranks, whole or not at all. Makes the folder if
/// needed. `other_data`, of rank 0, is a JSON object. `next` gives the rank's events piece by piece as
/// TraceText does, the first piece not empty, then an empty text. Rank 0 holds one piece of another rank at a
/// time. A file that cannot be written is no error: the pieces are then dropped.
TraceFileResult write_trace(Communicator& all, const std::filesystem::path& target,
                            const std::string& other_data, const std::function<std::string()>& next);

}  // namespace nemocube
