#pragma once
#include <cstdint>

#include "core/tensor.h"

namespace nemocube {

constexpr std::int64_t ignored_label = -100;

/// The targets of token rows, already shifted, and the list of labelled rows. The list is made on the host,
/// once, where the labels come from, so that no operation has to search for labelled rows. With a capacity it
/// has the same size for batches with different numbers of targets.
struct Labels {
  Labels() = default;
  /// From labels in host memory, i64, contiguous, one for each row: a token, or ignored_label. The caller has
  /// checked them against the vocabulary; operations do not. Error for other dtypes or layouts.
  Labels(const Tensor& values);  // NOLINT(google-explicit-constructor): labels on the host are labels
  /// With room for `capacity` targets, at most one a row; Error where there are more targets. 0: no more than
  /// there are. `weights`, [T] f64 in host memory: a factor of each row's loss, and so of its gradient;
  /// undefined: 1.
  Labels(const Tensor& values, std::int64_t capacity, const Tensor& weights = {});
  Labels to(Device device) const;
  /// Takes over the values of labels of the same sizes, in the memory that is there.
  void copy_from(const Labels& other) const;

  std::int64_t count() const { return rows.numel(); }  ///< rows with a target, or the capacity

  Tensor values;  ///< [T] i64: the label of each row
  Tensor
      rows;  ///< [count] i64: the rows whose label is a target, in order; then T in the places that are left
  Tensor targets;         ///< [count] i64: the labels of `rows`; then ignored_label
  Tensor weights;         ///< [T] f64; undefined: 1
  Tensor target_weights;  ///< [count] f64: the weights of `rows`; then 0; undefined: 1
};

}  // namespace nemocube
