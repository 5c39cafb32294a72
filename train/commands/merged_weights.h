#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace nemocube {

/// The result of comparing the adapted weights of a merged copy.
struct MergedWeights {
  std::int64_t weights = 0;   ///< compared: linear layers and stacks of experts
  double largest_change = 0;  ///< |s B A|
  double largest_error = 0;   ///< |copy - (W + s B A)|, over the bound of rounding; up to 1 is rounding
  std::vector<std::string>
      unresolved;  ///< weights that the adapter changes by less than the copy's dtype resolves, everywhere
};

/// Compares each element of every adapted weight of `copy` with W + s B A of `source` and `adapter`, which is
/// formed in f64:
///     |copy - v| <= eps(stored) / 2 |v| + (r + 4) eps(f32) (|W| + s |B_i| |A_j|),   v = W + s B A
/// The first term is the one rounding to the dtype of the copy, with eps the distance of 1 from the next
/// number. The second is the rounding of a sum of r products and W in f32, by Cauchy and Schwarz with the
/// norms of B's row and A's column. An adapter that was left out, of one weight or of all, therefore fails
/// wherever its effect is visible in the copy's dtype.
///
/// Holds a part of a weight at a time. Throws Error where an element is beyond the bound, naming the copy,
/// the number of such weights and the first one with its worst element.
MergedWeights check_merged_weights(const std::filesystem::path& source, const std::filesystem::path& adapter,
                                   const std::filesystem::path& copy);

}  // namespace nemocube
