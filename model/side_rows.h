#pragma once
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "core/autograd.h"
#include "model/tensor_name.h"

/// Rows that one part of a model makes and later blocks read, beside the residual stream: keys and values
/// that layers share, and per-layer inputs.
namespace nemocube {

/// What a block reads of a part before it.
struct SideRows {
  static constexpr std::int64_t front = -1;

  TensorName name;     ///< by which the maker and its readers know the rows
  std::int64_t from;   ///< the block that makes the rows, or `front`
  std::int64_t width;  ///< of a row, where nothing is cut
  /// The weight that tensor parallelism cuts the columns with: a rank has all rows of its context-parallel
  /// part, and as many columns as the rank's part of this weight has rows. With an empty member the rank has
  /// its rows of the residual stream, with all columns.
  TensorName cut_with = {};

  /// Whether `cut_with` names a weight.
  bool all_rows() const { return !cut_with.member.empty(); }
  bool operator==(const SideRows&) const = default;
};

struct MixerState;

/// The side rows of one forward pass. While decoding, also the caches that keys and values are in.
class SideStream {
 public:
  /// Throws std::logic_error where nothing has made the rows.
  const Var& get(const TensorName& name) const;
  void set(const TensorName& name, Var rows) { rows_.insert_or_assign(name, std::move(rows)); }

  /// The cache of the keys and values that `block` has made. It belongs to the first block of this rank that
  /// has appended them in this pass. Null: no block has done so yet.
  MixerState*& cache_of(std::int64_t block) { return caches_[block]; }

 private:
  std::map<TensorName, Var> rows_;
  std::map<std::int64_t, MixerState*> caches_;
};

}  // namespace nemocube
