#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

/// The process grid: every rank of a job has a coordinate in each named dimension (tensor, context, data,
/// pipeline, ...), and the ranks that differ in some dimensions only form a group.
///
/// The first dimension varies fastest. With sizes n_0, n_1, ... and stride_i = n_0 * ... * n_(i-1):
///     rank    = offset + sum over i of coordinate_i * stride_i
///     coordinate_i = ((rank - offset) / stride_i) mod n_i
/// This is the order of Megatron-LM's HyperCommGrid and of its "tp-cp-ep-dp-pp".
///
/// Ranks are world ranks, `int` as in MPI. Nothing here communicates. Every rank computes the same groups by
/// arithmetic alone, even for a grid of more ranks than this job has.
namespace nemocube {

struct GridDimension {
  std::string name;
  std::int64_t size = 1;
};

/// All groups of one subset S of a grid's dimensions. Each rank of the grid is in one group, and all groups
/// have the same size. Groups are numbered by the coordinates outside S, members by the coordinates in S; the
/// first dimension varies fastest in both. The ranks of a group are ascending.
class RankGroups {
 public:
  /// The name of the set of groups: the dimensions of S in reverse order of the grid, joined by "-", as in
  /// "dp-tp". For a view other than the base the name of the view comes first, as in "expert:ep-expt_tp",
  /// unless the groups are also groups of the base. Two sets with the same name are the same groups and share
  /// communicators.
  const std::string& name() const { return name_; }
  std::int64_t count() const { return count_; }
  std::int64_t size() const { return size_; }
  /// The rank at a position of a group, 0 <= group < count(), 0 <= position < size().
  int rank(std::int64_t group, std::int64_t position) const;
  /// All ranks of a group.
  std::vector<int> ranks(std::int64_t group) const;
  /// The group that holds a rank of the grid.
  std::int64_t group_of(int rank) const;
  /// The rank's place in its group, which is its rank in the communicator.
  std::int64_t position_of(int rank) const;
  /// Equal when every group has the same ranks in the same order.
  friend bool operator==(const RankGroups& a, const RankGroups& b);

 private:
  friend class HypercubeGrid;
  struct Axis {
    std::int64_t size, stride;
    friend bool operator==(const Axis&, const Axis&) = default;
  };
  using Axes = std::vector<Axis>;
  static std::int64_t offset_at(const Axes& axes, std::int64_t index);
  static Axes merged(const Axes& axes);
  std::int64_t index_along(const Axes& axes, int rank) const;

  std::string name_;
  std::int64_t offset_ = 0, count_ = 1, size_ = 1;
  Axes inside_, outside_;  // the dimensions in S, and the others
};

class HypercubeGrid {
 public:
  /// The name of the view that has the constructor's dimensions.
  static constexpr const char* base = "base";

  /// A grid over the ranks [offset, offset + product of the sizes) of a world of `world` ranks. Several grids
  /// with different offsets make a heterogeneous job. Throws Error for no dimension, an empty or repeated
  /// name, a size below 1, a product that overflows, a negative offset, and a grid larger than the world.
  HypercubeGrid(std::vector<GridDimension> dimensions, std::int64_t offset, std::int64_t world);

  /// Adds a second factorisation of the same ranks, such as expert:expt_tp=1,ep=4,expt_dp=2,pp=2 beside
  /// tp=2,cp=1,dp=4,pp=2. The `shared` dimensions must give the same groups in the view and in the base,
  /// each dimension alone and all together; groups() then returns the groups of the base. Throws Error
  /// for a name that is taken, dimensions that the constructor would refuse, a product other than the
  /// grid's size, and shared dimensions that are repeated, missing in the view or the base, or give
  /// different groups (the message lists both).
  void add_view(const std::string& name, std::vector<GridDimension> dimensions,
                const std::vector<std::string>& shared = {});

  int offset() const { return static_cast<int>(offset_); }
  int size() const { return static_cast<int>(size_); }
  bool contains(int rank) const { return rank >= offset_ && rank < offset_ + size_; }

  bool has_view(const std::string& name) const { return views_.contains(name); }
  /// The dimensions of a view, fastest first. Throws Error listing the views when there is none of that name.
  std::span<const GridDimension> dimensions(const std::string& view = base) const;
  /// The coordinates of a rank of the grid in the dimensions of a view, in their order.
  std::vector<std::int64_t> coordinates(int rank, const std::string& view = base) const;
  /// The groups of a subset of a view's dimensions; the order of the names does not matter. A subset of
  /// shared dimensions gives the groups of the base. Throws Error for an unknown view, an empty subset, a
  /// repeated name, and a name that is not in the view.
  RankGroups groups(const std::vector<std::string>& subset, const std::string& view = base) const;

 private:
  struct View {
    std::vector<GridDimension> dimensions;
    std::vector<std::string> shared;
  };
  const View& view(const std::string& name) const;
  RankGroups enumerate(const View& view, const std::string& view_name,
                       const std::vector<std::string>& subset) const;

  std::int64_t offset_ = 0, size_ = 0;
  std::map<std::string, View> views_;
};

/// "[0, 2] [1, 3]", cut after `most` ranks.
std::string to_string(const RankGroups& groups, std::int64_t most = 32);
/// "tp=2,cp=1,dp=4"
std::string to_string(std::span<const GridDimension> dimensions);

}  // namespace nemocube
