#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// The bytes of TensorBoard's event files: records (tensorboard/data/server/tf_record.rs) that each hold one
/// message Event (tensorboard/compat/proto/event.proto) in the encoding of protocol buffers. All numbers are
/// little-endian.
namespace nemocube {

using Scalars = std::vector<std::pair<std::string, double>>;  ///< by tag

/// length u64, masked CRC-32C of these 8 bytes u32, payload, masked CRC-32C of the payload u32. A CRC is
/// masked by rotating it right by 15 bits and adding 0xA282EAD8.
std::string event_record(std::string_view payload);

/// The first record of a file: file_version "brain.Event:2". `time`: seconds since 1970.
std::string version_record(double time);

/// session_log with status START. From here on a reader forgets the points of earlier files in this folder
/// whose step is `step` or more. Readers look for this event in files of version 2.
std::string start_record(double time, std::int64_t step);

/// One value of f32 for each tag, at a step of 0 or more.
std::string scalars_record(double time, std::int64_t step, const Scalars& scalars);

}  // namespace nemocube
