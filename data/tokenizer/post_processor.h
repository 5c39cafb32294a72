#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "data/json/json_ref.h"

namespace nemocube::tok {

/// The special tokens that the `post_processor` of a tokenizer.json puts around a single sequence:
/// TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel (nothing) and Sequence. Pairs are not
/// supported.
struct PostProcessor {
  std::vector<std::int64_t> prefix;
  std::vector<std::int64_t> suffix;
  /// The steps with `trim_offsets`, which take spaces out of the ranges of tokens: the `add_prefix_space` of
  /// each.
  std::vector<bool> trims;

  /// `spec` may be absent. Throws Error naming a component that is not supported.
  static PostProcessor load(const std::optional<JsonRef>& spec);

 private:
  void add(const JsonRef& spec, int depth, bool& found);
  void add_template(const JsonRef& spec);
};

}  // namespace nemocube::tok
