#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// Blends of token files, as Megatron-LM and NeMo AutoModel form them.
namespace nemocube {

struct Blend {
  std::vector<std::string> prefixes;
  std::vector<double> weights;  ///< one for each prefix, adding up to 1; empty: not given
};

/// The parts of `train,validation,test` that a data set can be.
enum class MegatronSplit { train, validation, test };

/// The blend that `paths` names:
///   - a list of prefixes (of .bin and .idx files), or of weights and prefixes by turns
///   - one text: a prefix; a pattern with *, ? or [ for files; or a JSON file with such a list
/// A JSON file may also hold an object of such lists, {train, validation, test}
/// (valid, val and dev are validation); `whole` is then true, because the list is of
/// one split alone. Throws Error naming the mistake.
struct NamedBlend {
  Blend blend;
  bool whole = false;
};
NamedBlend read_blend(const std::vector<std::string>& paths, MegatronSplit split);

/// Sequences [first, last) of `sequences` for a part of "900,50,50": the shares are added up and rounded to
/// even. Throws Error when `shares` are not up to three numbers from 0, or when the part is empty.
std::pair<std::int64_t, std::int64_t> split_range(const std::string& shares, MegatronSplit split,
                                                  std::int64_t sequences);

/// Sample i of a blend.
struct BlendSample {
  std::int64_t part = 0;    ///< number of the prefix
  std::int64_t sample = 0;  ///< of this part
};

/// For i = 0, 1, ... `size` - 1: the part whose weight * max(i, 1) is furthest above the number
/// of samples taken from the part, the first of several, and its next sample. With `limits` a
/// part is left out after its limit of samples.
std::vector<BlendSample> blend_samples(std::span<const double> weights, std::int64_t size,
                                       std::span<const std::int64_t> limits = {});

}  // namespace nemocube
