#pragma once
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/context_parallel/sequence_cut.h"

/// Parts of microbatches that every rank knows as a whole.
namespace nemocube::testing {

/// Lengths longer than a tile, shorter than the chunks and empty; no row on some ranks, or on all.
inline const std::vector<std::vector<std::int64_t>> uneven_microbatches{
    {37, 0, 5, 1, 230, 3}, {16}, {1}, {0, 2, 0}, {0}, {}};

/// The rows of x that a rank of the group has.
inline Tensor own_rows(const Tensor& x, const Sequences& whole, const Communicator& cp) {
  const auto rows = SequenceCut(whole, cp.size(), cp.rank()).rows(cp.rank());
  const Tensor own = Tensor::empty({std::ssize(rows), x.cols()}, x.dtype(), Device::cpu);
  for (std::int64_t i = 0; i < own.dim(0); ++i)
    own.narrow(0, i, 1).copy_from(x.narrow(0, rows[static_cast<std::size_t>(i)], 1));
  return own;
}

/// A value whose gradient has its own dtype, where that of a leaf has the accumulation dtype.
inline Var intermediate(const Tensor& t) {
  return Var(t, std::make_shared<GradNode>(t.shape(), t.dtype(), t.device(), false));
}

}  // namespace nemocube::testing
