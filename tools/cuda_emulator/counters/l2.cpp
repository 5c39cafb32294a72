#include "counters/l2.h"

#include <algorithm>

#include "machine/device.h"
#include "machine/launch.h"

namespace emulator {

std::uint64_t l2_bytes() {
  static const std::uint64_t bytes = environment_number("CUDA_EMULATOR_L2", h100::l2_bytes);
  return bytes;
}

L2::L2(std::uint64_t bytes)
    : sets_(std::max<std::uint64_t>(bytes / (ways * line_bytes), 1)), lines_(ways * sets_) {}

void L2::evict(Line& line) {
  for (std::size_t s = 0; s < 4; ++s) {
    if (!line.written[s]) continue;
    ++written_sectors_;
    // A sector of which a part was written takes the rest from DRAM.
    if (line.written[s] != ~0u && !(line.valid >> s & 1)) ++read_sectors_;
  }
  line = Line{};
}

void L2::access(std::uint64_t address, std::uint32_t bytes, Use use) {
  const std::uint64_t number = address / line_bytes;
  const std::size_t sector = address / sector_bytes % 4;
  Line* const set = lines_.data() + number % sets_ * ways;
  Line* line = nullptr;
  Line* oldest = set;
  for (Line* l = set; l != set + ways; ++l) {
    if (l->tag == number + 1) {
      line = l;
      break;
    }
    if (l->used < oldest->used) oldest = l;
  }
  if (!line) {
    line = oldest;
    evict(*line);
    line->tag = number + 1;
  }
  line->used = ++time_;
  const std::uint32_t first = static_cast<std::uint32_t>(address % sector_bytes);
  const std::uint32_t mask = (bytes >= 32 ? ~0u : (1u << bytes) - 1) << first;
  const bool has = (line->valid >> sector & 1) || (line->written[sector] & mask) == mask;
  if (use != Use::store && !has) {
    ++read_sectors_;
    line->valid = static_cast<std::uint8_t>(line->valid | 1u << sector);
  }
  if (use != Use::load) line->written[sector] |= mask;
}

void L2::flush() {
  for (Line& line : lines_)
    if (line.tag) evict(line);
}

}  // namespace emulator
