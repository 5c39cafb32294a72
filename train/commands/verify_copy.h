#pragma once
#include <filesystem>

namespace nemocube {

/// Whether a copy of a model computes the same as its source: compares logits of a few fixed rows
/// of tokens, on the CPU. One model is in memory at a time. `adapter` is the adapter that the copy
/// has merged into its weights; empty: none.
///
/// Without an adapter both are computed in the dtype of the copy. A weight is then rounded to this dtype
/// once, when the source is read and when the copy was written, so the logits are the same to the bit. With
/// an adapter the adapted weights are compared first, each element by itself
/// (train/commands/merged_weights.h): logits alone do not tell a small missing adapter from rounding. Then
/// both are computed in f32, and the copy's weights W + s B A are rounded to the dtypes that it is stored in:
///     largest difference <= (16 eps(stored) + 32 eps(computed)) sqrt(blocks + 1) max|logit|
/// A block's sums of products change by less than eps of themselves, and the errors of blocks add up like
/// independent ones. The factor 16 leaves room for squared ReLU and for tokens that choose another expert
/// among close ones: the goldens need 5.
///
/// Logs the largest difference and its bound, and the effect of the adapter. Error that leaves the copy in
/// place where a bound is exceeded or a logit is not finite.
void verify_copy(const std::filesystem::path& source, const std::filesystem::path& adapter,
                 const std::filesystem::path& copy);

}  // namespace nemocube
