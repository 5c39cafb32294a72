#include "train/logging/event_records.h"

#include <bit>
#include <concepts>

#include "core/error.h"
#include "data/files/crc32c.h"

namespace nemocube {
namespace {

void put_little_endian(std::string& out, std::unsigned_integral auto value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>((value >> (8 * i)) & 0xff);
}

std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(std::as_bytes(std::span(bytes))), 15) + 0xA282EAD8u;
}

/// A message in the encoding of protocol buffers: each field is (number * 8 + kind) and a value.
class Message {
 public:
  std::string bytes;

  Message& varint(int number, std::uint64_t value) {
    key(number, 0);
    put_varint(value);
    return *this;
  }
  Message& real64(int number, double value) {
    key(number, 1);
    put_little_endian(bytes, std::bit_cast<std::uint64_t>(value));
    return *this;
  }
  Message& text(int number, std::string_view value) {
    key(number, 2);
    put_varint(value.size());
    bytes += value;
    return *this;
  }
  Message& real32(int number, float value) {
    key(number, 5);
    put_little_endian(bytes, std::bit_cast<std::uint32_t>(value));
    return *this;
  }

 private:
  void key(int number, int kind) { put_varint(static_cast<std::uint64_t>(number * 8 + kind)); }
  void put_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
    bytes += static_cast<char>(value);
  }
};

Message event(double time, std::int64_t step) {
  expect(step >= 0, "event of step ", step);
  Message message;
  message.real64(1, time);
  if (step != 0) message.varint(2, static_cast<std::uint64_t>(step));  // 0 is what an absent field means
  return message;
}

}  // namespace

std::string event_record(std::string_view payload) {
  std::string out;
  put_little_endian(out, std::uint64_t{payload.size()});
  put_little_endian(out, masked_crc(out));
  out += payload;
  put_little_endian(out, masked_crc(payload));
  return out;
}

std::string version_record(double time) {
  return event_record(event(time, 0).text(3, "brain.Event:2").bytes);
}

std::string start_record(double time, std::int64_t step) {
  return event_record(event(time, step).text(7, Message().varint(1, 1).bytes).bytes);
}

std::string scalars_record(double time, std::int64_t step, const Scalars& scalars) {
  Message summary;
  for (const auto& [tag, value] : scalars)
    summary.text(1, Message().text(1, tag).real32(2, static_cast<float>(value)).bytes);
  return event_record(event(time, step).text(5, summary.bytes).bytes);
}

}  // namespace nemocube
