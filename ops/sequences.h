#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/error.h"

namespace nemocube {

/// How the token rows of a batch are cut into sequences: sequence i holds rows [offsets[i], offsets[i + 1]).
/// A rectangular batch of B rows of S tokens is B sequences of S; a packed batch has any lengths. Operations
/// along the sequence (convolution, scan, attention) start afresh at every offset. Other libraries call the
/// offsets cu_seqlens.
struct Sequences {
  std::vector<std::int64_t> offsets{0};

  static Sequences uniform(std::int64_t count, std::int64_t length);
  static Sequences of_lengths(std::span<const std::int64_t> lengths);
  /// From one id for each token: a new sequence starts wherever the id changes.
  static Sequences from_ids(std::span<const std::int64_t> ids);

  std::int64_t count() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  std::int64_t tokens() const { return offsets.back(); }
  std::int64_t begin(std::int64_t i) const { return offsets[static_cast<std::size_t>(i)]; }
  std::int64_t end(std::int64_t i) const { return offsets[static_cast<std::size_t>(i) + 1]; }
  std::int64_t length(std::int64_t i) const { return end(i) - begin(i); }
  std::int64_t longest() const;
  /// Throws Error naming `what` unless the offsets ascend from 0 to `tokens`.
  void check(std::string_view what, std::int64_t tokens) const;
};

}  // namespace nemocube
