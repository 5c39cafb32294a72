#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/shard.h"
#include "data/safetensors/reader.h"

/// Tensors stored as codes of few bits, with scales in tensors beside them:
///     F8_E4M3           value = code * scale            one scale a tensor, a row, or a block of 128 x 128
///     U8, NVFP4         value = code * (scale * scale_2)  e2m1 codes, two a byte, the first in the low bits;
///                                                         an F8_E4M3
///                                                       scale for 16 columns of a row, an F32 scale_2 for
///                                                       the tensor
/// in f32. Blocks at the edges may be partial. The NVFP4 codes of a matrix [rows, columns] are stored as U8
/// [rows, columns / 2]. Sources: ModelOpt's modelopt/torch/export/quant_utils.py and
/// quantization/qtensor/nvfp4_tensor.py; DeepSeek-V3's weight_scale_inv, which multiplies in spite of its
/// name.
namespace nemocube {

/// The scales that files hold beside the codes of one tensor; `file` is null for an absent one.
struct ScaleTensors {
  StoredIn scale;      ///< weight_scale
  StoredIn scale_inv;  ///< weight_scale_inv
  StoredIn scale_2;    ///< weight_scale_2
  bool any() const { return scale.file || scale_inv.file || scale_2.file; }
};

class Quantized {
 public:
  /// Error naming file and tensor for codes and scales that do not go together. Reads no values.
  Quantized(const StoredIn& codes, const ScaleTensors& scales);

  const std::vector<std::int64_t>& shape() const { return shape_; }  ///< of the values
  int bits() const { return packed_ ? 4 : 8; }                       ///< of a code
  bool is_nvfp4() const { return packed_; }
  /// The bytes to read beside the codes of some elements; the second entry is empty without scale_2.
  StoredBytes scale_bytes(Range elements) const;
  StoredBytes scale_2_bytes() const;
  /// The values of `elements`, from their codes and scale_bytes() and scale_2_bytes(). Error naming file and
  /// tensor for a scale that is not finite.
  void decode(Range elements, std::span<const std::byte> codes, std::span<const std::byte> scales,
              std::span<const std::byte> scale_2, std::span<float> to) const;

 private:
  void choose_blocks(const StoredIn& codes);
  std::int64_t scale_of(std::int64_t element) const;
  Range scales_of(Range elements) const;
  std::vector<float> read_scales(Range scales, std::span<const std::byte> bytes) const;

  std::vector<std::int64_t> shape_;
  bool packed_ = false;
  StoredIn scale_, scale_2_;
  // Sizes of the values as a matrix, and of the block that one scale is for.
  std::int64_t rows_ = 1, columns_ = 1, block_rows_ = 1, block_columns_ = 1;
  std::int64_t blocks_in_row_ = 1;
};

}  // namespace nemocube
