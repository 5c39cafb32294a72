#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/json/test_dir.h"
#include "train/logging/event_records.h"

namespace nemocube::testing {

/// A message Event of an event file, as far as this program writes it.
struct ReadEvent {
  double time = 0;
  std::int64_t step = 0;
  std::string version;
  bool start = false;
  std::vector<std::pair<std::string, float>> scalars = {};
};

/// A field of a message in the encoding of protocol buffers.
struct ReadField {
  int number = 0;
  std::uint64_t value = 0;  // of a number
  std::string_view bytes;   // of a text or a message
};
inline std::vector<ReadField> read_fields(std::string_view message) {
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      REQUIRE(!message.empty());
      const auto byte = static_cast<unsigned char>(message.front());
      message.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  std::vector<ReadField> fields;
  while (!message.empty()) {
    const std::uint64_t key = varint();
    ReadField field{static_cast<int>(key >> 3), 0, {}};
    const std::size_t width = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : 0;
    if ((key & 7) == 0) {
      field.value = varint();
    } else {
      const std::size_t size = width > 0 ? width : varint();
      REQUIRE(size <= message.size());
      if (width > 0) std::memcpy(&field.value, message.data(), width);
      field.bytes = message.substr(0, size);
      message.remove_prefix(size);
    }
    fields.push_back(field);
  }
  return fields;
}

inline ReadEvent read_event(std::string_view payload) {
  ReadEvent event;
  for (const ReadField& f : read_fields(payload)) {
    if (f.number == 1) std::memcpy(&event.time, &f.value, 8);
    if (f.number == 2) event.step = static_cast<std::int64_t>(f.value);
    if (f.number == 3) event.version = f.bytes;
    if (f.number == 7) event.start = read_fields(f.bytes).at(0).value == 1;
    if (f.number != 5) continue;
    for (const ReadField& value : read_fields(f.bytes)) {
      const auto parts = read_fields(value.bytes);
      REQUIRE(parts.size() == 2);
      float number = 0;
      std::memcpy(&number, &parts[1].value, 4);
      event.scalars.emplace_back(parts[0].bytes, number);
    }
  }
  return event;
}

/// The events of a file, up to a last record that is not whole.
inline std::vector<ReadEvent> read_event_file(const std::filesystem::path& path) {
  const std::string all = slurp(path);
  std::string_view rest = all;
  std::vector<ReadEvent> events;
  while (rest.size() >= 16) {
    std::uint64_t size = 0;
    std::memcpy(&size, rest.data(), 8);
    if (rest.size() < size + 16) break;
    const std::string_view record = rest.substr(0, size + 16), payload = record.substr(12, size);
    CHECK(record == event_record(payload));
    events.push_back(read_event(payload));
    rest.remove_prefix(record.size());
  }
  return events;
}

inline std::vector<std::filesystem::path> event_files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename().string().find("tfevents") != std::string::npos) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

/// What TensorBoard shows of a folder: the points of each tag, without those that a later start says are
/// void.
using Points = std::map<std::int64_t, float>;
inline std::map<std::string, Points> shown_points(const std::filesystem::path& folder) {
  std::map<std::string, Points> shown;
  for (const auto& file : event_files_in(folder))
    for (const ReadEvent& event : read_event_file(file)) {
      if (event.start)
        for (auto& [tag, points] : shown) points.erase(points.lower_bound(event.step), points.end());
      for (const auto& [tag, value] : event.scalars) {
        CAPTURE(tag);
        CHECK(shown[tag].emplace(event.step, value).second);
      }
    }
  return shown;
}

inline std::vector<std::int64_t> steps_of(const Points& points) {
  std::vector<std::int64_t> steps;
  for (const auto& [step, value] : points) steps.push_back(step);
  return steps;
}

}  // namespace nemocube::testing
