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
  std::int64_t from;   ///< the block that makes them, or `front`
  std::int64_t width;  ///< of a row, where nothing is cut
  TensorName cut_with =
      {};  ///< a weight: a rank has all rows, and those columns that the weight has as rows.
           ///< Undefined member: the rank's rows of the residual stream, with all columns

  bool all_rows() const { return !cut_with.member.empty(); }
  bool operator==(const SideRows&) const = default;
};

struct MixerState;

/// The side rows of one forward pass, and of decoding the caches that they are in.
class SideStream {
 public:
  /// Throws std::logic_error where nothing has made the rows.
  const Var& get(const TensorName& name) const;
  void set(const TensorName& name, Var rows) { rows_.insert_or_assign(name, std::move(rows)); }

  /// The cache of a block's keys and values: that of the first block of this rank which has put them into
  /// one, in this pass. Null: none has.
  MixerState*& cache_of(std::int64_t block) { return caches_[block]; }

 private:
  std::map<TensorName, Var> rows_;
  std::map<std::int64_t, MixerState*> caches_;
};

}  // namespace nemocube
