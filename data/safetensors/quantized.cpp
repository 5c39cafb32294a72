#include "data/safetensors/quantized.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/parallel_for.h"
#include "data/safetensors/low_precision.h"

namespace nemocube {
namespace {

constexpr std::int64_t block_edge = 128, nvfp4_block = 16;

std::int64_t blocks_of(std::int64_t size, std::int64_t block) { return (size + block - 1) / block; }

std::int64_t elements_of(const StoredTensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.shape) count *= size;
  return count;
}

bool is_float(const StoredIn& at) {
  const std::string& dtype = at.entry->dtype;
  return dtype == "F32" || dtype == "BF16" || dtype == "F16" || dtype == "F64";
}

std::string named(const StoredIn& at) {
  return cat(at.file->path().string(), ": tensor '", at.entry->name, "'");
}

/// ModelOpt has dimensions of one between the blocks.
bool same_blocks(const std::vector<std::int64_t>& shape, std::int64_t rows, std::int64_t columns) {
  return shape == std::vector{rows, columns} || shape == std::vector<std::int64_t>{rows, 1, columns, 1};
}

StoredBytes bytes_of_elements(const StoredIn& at, Range elements) {
  const std::int64_t size = stored_bits(at.entry->dtype) / 8;
  return {at.file.get(), at.entry, {elements.begin * size, elements.end * size}};
}

/// The bytes may begin anywhere.
void to_floats(const StoredIn& at, std::span<const std::byte> bytes, std::span<float> to) {
  const std::vector<std::byte> aligned(bytes.begin(), bytes.end());
  at.file->convert(*at.entry, aligned, Tensor::borrow(to.data(), Shape{std::ssize(to)}, DType::f32, nullptr));
}

/// Codes of a tensor from some byte on, and the values of those that share a factor; both functions return
/// the end of what they wrote.
struct Codes {
  const std::byte* data;
  std::int64_t first_byte;
  unsigned byte(std::int64_t i) const { return std::to_integer<unsigned>(data[i - first_byte]); }

  float* decode_bytes(Range elements, float factor, float* to) const {
    for (std::int64_t at = elements.begin; at < elements.end; ++at) *to++ = factor * e4m3_values[byte(at)];
    return to;
  }

  float* decode_nibbles(Range elements, float factor, float* to) const {
    std::int64_t at = elements.begin;
    if (at % 2 != 0) *to++ = factor * e2m1_values[byte(at++ / 2) >> 4];
    for (; at + 1 < elements.end; at += 2) {
      const unsigned pair = byte(at / 2);
      *to++ = factor * e2m1_values[pair & 15U];
      *to++ = factor * e2m1_values[pair >> 4];
    }
    if (at < elements.end) *to++ = factor * e2m1_values[byte(at / 2) & 15U];
    return to;
  }
};

}  // namespace

Quantized::Quantized(const StoredIn& codes, const ScaleTensors& scales) : shape_(codes.entry->shape) {
  const StoredTensor& entry = *codes.entry;
  packed_ = entry.dtype == "U8";
  require(packed_ || entry.dtype == "F8_E4M3", named(codes),
          ": has scales, so want F8_E4M3 or, for NVFP4, U8, got ", describe(entry));
  require(!scales.scale.file != !scales.scale_inv.file, named(codes), " (", describe(entry),
          "): want either '", entry.name, "_scale' or '", entry.name, "_scale_inv' beside it, got ",
          scales.scale.file ? "both" : "neither");
  scale_ = scales.scale.file ? scales.scale : scales.scale_inv;
  scale_2_ = scales.scale_2;
  if (packed_) {
    require(shape_.size() == 2 && shape_[1] > 0 && shape_[1] < std::numeric_limits<std::int64_t>::max() / 2,
            named(codes), ": want an NVFP4 matrix, U8 [rows, columns / 2], got ", describe(entry));
    shape_[1] *= 2;
    require(scale_2_.file && is_float(scale_2_) && elements_of(*scale_2_.entry) == 1, named(codes),
            ": U8 codes are NVFP4; want one number '", entry.name, "_scale_2' beside it, got ",
            scale_2_.file ? describe(*scale_2_.entry) : "none");
    require(scale_.entry->dtype == "F8_E4M3", named(scale_), ": want F8_E4M3 scales of NVFP4 codes, got ",
            describe(*scale_.entry));
  } else {
    require(!scale_2_.file, named(codes), ": F8_E4M3 codes have one kind of scales, but '", entry.name,
            "_scale_2' is beside it");
    require(is_float(scale_), named(scale_), ": want floating scales of F8_E4M3 codes, got ",
            describe(*scale_.entry));
  }
  choose_blocks(codes);
}

void Quantized::choose_blocks(const StoredIn& codes) {
  const std::vector<std::int64_t>& got = scale_.entry->shape;
  columns_ = std::max<std::int64_t>(elements_of(*codes.entry), 1);
  if (shape_.size() == 2) rows_ = shape_[0], columns_ = std::max<std::int64_t>(shape_[1], 1);
  const auto blocks = [&](std::int64_t rows, std::int64_t columns) {
    block_rows_ = std::max<std::int64_t>(rows, 1), block_columns_ = columns;
    blocks_in_row_ = blocks_of(columns_, columns);
  };
  const bool matrix = shape_.size() == 2;
  if (packed_) {
    const std::vector want{rows_, blocks_of(columns_, nvfp4_block)};
    require(got == want, named(scale_), ": want a scale for each ", nvfp4_block, " columns, [", want[0], ", ",
            want[1], "], of values [", rows_, ", ", columns_, "], got ", describe(*scale_.entry));
    return blocks(1, nvfp4_block);
  }
  const bool square =
      matrix && same_blocks(got, blocks_of(rows_, block_edge), blocks_of(columns_, block_edge));
  if (square) return blocks(block_edge, block_edge);
  if (elements_of(*scale_.entry) == 1 && got.size() <= 1) return blocks(rows_, columns_);
  const bool by_row = matrix && (got == std::vector{rows_} || got == std::vector<std::int64_t>{rows_, 1});
  require(by_row, named(scale_), ": want one scale, one for each row, or one for each block of ", block_edge,
          " x ", block_edge, " of ", describe(*codes.entry), ", got ", describe(*scale_.entry));
  blocks(1, columns_);
}

std::int64_t Quantized::scale_of(std::int64_t element) const {
  const std::int64_t row = element / columns_, column = element % columns_;
  return row / block_rows_ * blocks_in_row_ + column / block_columns_;
}

Range Quantized::scales_of(Range elements) const {
  if (elements.begin >= elements.end) return {};
  const std::int64_t first = scale_of(elements.begin), last = scale_of(elements.end - 1);
  const bool one_row = elements.begin / columns_ == (elements.end - 1) / columns_;
  if (one_row || block_rows_ == 1) return {first, last + 1};
  // Elements of several rows may have scales before and behind those of the first and the last.
  return {first / blocks_in_row_ * blocks_in_row_, (last / blocks_in_row_ + 1) * blocks_in_row_};
}

StoredBytes Quantized::scale_bytes(Range elements) const {
  return bytes_of_elements(scale_, scales_of(elements));
}

StoredBytes Quantized::scale_2_bytes() const {
  return scale_2_.file ? bytes_of_elements(scale_2_, {0, 1}) : StoredBytes{};
}

std::vector<float> Quantized::read_scales(Range scales, std::span<const std::byte> bytes) const {
  std::vector<float> values(static_cast<std::size_t>(scales.size()));
  if (packed_)
    std::ranges::transform(bytes, values.begin(),
                           [](std::byte code) { return e4m3_values[std::to_integer<std::size_t>(code)]; });
  else
    to_floats(scale_, bytes, values);
  const auto bad = std::ranges::find_if_not(values, [](float v) { return std::isfinite(v); });
  require(bad == values.end(), named(scale_), ": want finite scales, got ", bad == values.end() ? 0 : *bad,
          " as number ", scales.begin + (bad - values.begin()));
  return values;
}

void Quantized::decode(Range elements, std::span<const std::byte> codes, std::span<const std::byte> scales,
                       std::span<const std::byte> scale_2, std::span<float> to) const {
  const Range held = scales_of(elements);
  std::vector<float> factors = read_scales(held, scales);
  if (packed_) {
    float whole = 0;
    to_floats(scale_2_, scale_2, {&whole, 1});
    require(std::isfinite(whole), named(scale_2_), ": want a finite scale, got ", whole);
    for (float& factor : factors) factor *= whole;
  }
  const Codes all{codes.data(), elements.begin * bits() / 8};
  parallel_for(elements.size(), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
    float* out = to.data() + begin;
    for (std::int64_t at = elements.begin + begin; at < elements.begin + end;) {
      const float factor = factors[static_cast<std::size_t>(scale_of(at) - held.begin)];
      const std::int64_t column = at % columns_,
                         block_end = std::min((column / block_columns_ + 1) * block_columns_, columns_),
                         stop = std::min(at + block_end - column, elements.begin + end);
      out = packed_ ? all.decode_nibbles({at, stop}, factor, out) : all.decode_bytes({at, stop}, factor, out);
      at = stop;
    }
  });
}

}  // namespace nemocube
