#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/shard.h"
#include "parallel/expert_parallel/expert_groups.h"
#include "parallel/grid/grid_sizes.h"
#include "parallel/mappings/mappings.h"
#include "tests/support/ranks.h"

/// What the tests of expert parallelism share.
namespace nemocube::testing {

/// The ranks of the tests as expt_tp x ep x expt_dp.
class ExpertGrid {
 public:
  explicit ExpertGrid(const GridSizes& grid_sizes)
      : sizes(grid_sizes),
        grid_(make_grid(sizes)),
        ep_(split({"ep"})),
        expt_tp_(split({"expt_tp"})),
        tp_ep_(split({"expt_tp", "ep"})),
        replicas_(split({"expt_dp"})) {}

  ExpertGroups groups() const { return {*ep_, *expt_tp_, *tp_ep_}; }
  Communicator& replicas() const { return *replicas_; }
  std::string text() const { return to_string(sizes); }

  const GridSizes sizes;

 private:
  std::unique_ptr<Communicator> split(const std::vector<std::string>& dimensions) const {
    const RankGroups ranks = grid_.groups(dimensions, "expert");
    const int rank = test_world().rank();
    return test_world().split(dimensions.back(), static_cast<int>(ranks.group_of(rank)), rank);
  }

  HypercubeGrid grid_;
  std::unique_ptr<Communicator> ep_, expt_tp_, tp_ep_, replicas_;
};

/// Calls fn(grid) for all ep and expt_tp whose product divides the number of ranks.
template <class Fn>
void on_expert_grids(Fn&& fn) {
  const std::int64_t ranks = test_world().size();
  for (std::int64_t ep = 1; ep <= ranks; ++ep)
    for (std::int64_t expt_tp = 1; ep * expt_tp <= ranks; ++expt_tp)
      if (ranks % (ep * expt_tp) == 0) fn(ExpertGrid({.dp_shard = ranks, .expt_tp = expt_tp, .ep = ep}));
}

/// Tokens of a world rank: uneven, on some ranks none.
inline std::int64_t tokens_of(int rank) {
  constexpr std::int64_t tokens[] = {5, 0, 7, 1, 3, 0, 2, 4};
  return tokens[rank % 8];
}

/// This rank's slice of the experts' inner width, as even as possible.
inline Range slice_of(std::int64_t inner, const Communicator& expt_tp) {
  return even_part({0, inner}, expt_tp.size(), expt_tp.rank());
}

/// The elements of a global tensor that a shard keeps.
inline Tensor local_part(const Shard& shard, const Tensor& global) {
  const std::vector<double> values = global.to_vector();
  std::vector<double> own(static_cast<std::size_t>(shard.numel()));
  shard.for_each_run([&](std::int64_t local, std::int64_t at, std::int64_t count) {
    std::copy_n(values.begin() + at, count, own.begin() + local);
  });
  return Tensor::from(own, shard.shape()).to(global.dtype());
}

}  // namespace nemocube::testing
