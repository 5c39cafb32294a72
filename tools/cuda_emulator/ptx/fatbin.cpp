#include "ptx/fatbin.h"

#include <zstd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace emulator::ptx {
namespace {

constexpr std::uint32_t wrapper_magic = 0x466243b1, fatbin_magic = 0xba55ed50;
constexpr std::uint16_t kind_ptx = 1;
constexpr std::uint64_t flag_exact = 0x100000;
constexpr int device = 90;  ///< compute capability of the emulated device

/// What __cudaRegisterFatBinary gets: in the program's section .nvFatBinSegment.
struct Wrapper {
  std::uint32_t magic, version;
  const std::byte* fatbin;
  const std::byte* const* linked;  ///< version 2: the fatbins of all linked units, ended by a null pointer
};
static_assert(sizeof(Wrapper) == 24);

struct Fatbin {
  std::uint32_t magic;
  std::uint16_t version, header_bytes;
  std::uint64_t bytes;  ///< of all entries
};
static_assert(sizeof(Fatbin) == 16);

struct Entry {
  std::uint16_t kind, unknown;
  std::uint32_t header_bytes;
  std::uint64_t payload_bytes;
  std::uint32_t compressed_bytes;  ///< 0: plain
  std::uint32_t options_offset;
  std::uint16_t minor, major;
  std::uint32_t architecture;
  std::uint32_t name_offset, name_bytes;
  std::uint64_t flags, reserved;
  std::uint64_t plain_bytes;  ///< of the decompressed text; 0: plain
};
static_assert(sizeof(Entry) == 64);

template <typename T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::string hexadecimal(std::uint64_t value) {
  char digits[24];
  std::snprintf(digits, sizeof digits, "0x%llx", static_cast<unsigned long long>(value));
  return digits;
}

std::string decompressed(const std::byte* payload, const Entry& entry) {
  if (ZSTD_getFrameContentSize(payload, entry.compressed_bytes) != entry.plain_bytes) {
    throw std::runtime_error(
        "fat binary: PTX whose compression is not zstd, or damaged; nvcc -no-compress leaves plain PTX");
  }
  std::string text(entry.plain_bytes, '\0');
  const std::size_t bytes = ZSTD_decompress(text.data(), text.size(), payload, entry.compressed_bytes);
  if (ZSTD_isError(bytes)) {
    throw std::runtime_error(std::string("fat binary: damaged compressed PTX: ") + ZSTD_getErrorName(bytes));
  }
  return text;
}

PtxText text_of(const std::byte* payload, const Entry& entry) {
  PtxText ptx;
  ptx.architecture = static_cast<int>(entry.architecture);
  ptx.exact = (entry.flags & flag_exact) != 0;
  if (entry.compressed_bytes != 0) {
    ptx.text = decompressed(payload, entry);
  } else {
    ptx.text.assign(reinterpret_cast<const char*>(payload), entry.payload_bytes);
  }
  ptx.text.resize(std::min(ptx.text.find('\0'), ptx.text.size()));
  return ptx;
}

std::vector<PtxText> texts_of(const std::byte* fatbin) {
  const auto header = read<Fatbin>(fatbin);
  if (header.magic != fatbin_magic)
    throw std::runtime_error("fat binary: unknown magic " + hexadecimal(header.magic));
  if (header.version != 1)
    throw std::runtime_error("fat binary: unknown version " + std::to_string(header.version));
  if (header.header_bytes < sizeof(Fatbin)) throw std::runtime_error("fat binary: header too short");
  std::vector<PtxText> texts;
  const std::byte* at = fatbin + header.header_bytes;
  for (std::uint64_t left = header.bytes; left > 0;) {
    if (left < sizeof(Entry)) throw std::runtime_error("fat binary: an entry passes its end");
    const auto entry = read<Entry>(at);
    if (entry.header_bytes < sizeof(Entry) || entry.header_bytes > left ||
        entry.payload_bytes > left - entry.header_bytes || entry.compressed_bytes > entry.payload_bytes) {
      throw std::runtime_error("fat binary: an entry passes its end");
    }
    const bool newer = static_cast<int>(entry.architecture) > device;
    if (entry.kind == kind_ptx && !newer) texts.push_back(text_of(at + entry.header_bytes, entry));
    at += entry.header_bytes + entry.payload_bytes;
    left -= entry.header_bytes + entry.payload_bytes;
  }
  return texts;
}

}  // namespace

std::vector<std::vector<PtxText>> ptx_of(const void* wrapper) {
  const auto head = read<Wrapper>(static_cast<const std::byte*>(wrapper));
  if (head.magic != wrapper_magic) {
    throw std::runtime_error("fat binary wrapper: unknown magic " + hexadecimal(head.magic));
  }
  if (head.version == 1) return {texts_of(head.fatbin)};
  if (head.version != 2) {
    throw std::runtime_error("fat binary wrapper: unknown version " + std::to_string(head.version));
  }
  std::vector<std::vector<PtxText>> units;
  if (head.linked == nullptr) return units;
  for (const std::byte* const* unit = head.linked; *unit != nullptr; ++unit) units.push_back(texts_of(*unit));
  return units;
}

const PtxText* choose(const std::vector<PtxText>& texts) {
  const PtxText* best = nullptr;
  for (const PtxText& text : texts) {
    if (text.architecture > device || (text.exact && text.architecture != device)) continue;
    const bool better = best == nullptr || text.architecture > best->architecture ||
                        (text.architecture == best->architecture && text.exact && !best->exact);
    if (better) best = &text;
  }
  return best;
}

}  // namespace emulator::ptx
