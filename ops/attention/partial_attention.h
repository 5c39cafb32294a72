#pragma once
#include <span>
#include <vector>

#include "core/autograd.h"
#include "core/shard.h"
#include "ops/attention/attention.h"

/// Attention piece by piece and without a tape. `attention` consists of these functions, and several devices
/// use them to compute attention together.
namespace nemocube {

/// Rows of q, and the rows of k and v that they attend to: consecutive rows of one sequence. `distance` is
/// the position of the first query in the sequence minus the position of the first key, any number; unless
/// given, the queries stand at the last of the keys. With d = distance, query i of the pair sees key j of the
/// pair with `causal` when j <= i + d, and with a window W when j > i + d - W; slopes count i + d - j. A
/// query_block counts the queries of the pair: with B and d = B - 1, and W = B, a query sees the keys of its
/// own block; with d = -1 those of the blocks before.
struct AttentionPair {
  Range queries, keys;
  std::int64_t distance = keys.size() - queries.size();
};

/// A list of pairs on the host, and its table on the device of the kernels.
class AttentionPairs {
 public:
  AttentionPairs() = default;  ///< none
  AttentionPairs(std::vector<AttentionPair> pairs, Device device);

  const std::vector<AttentionPair>& list() const { return list_; }
  /// [pairs, 5] i64: begin and end of the queries, begin and end of the keys, distance; undefined without
  /// pairs.
  const Tensor& table() const { return table_; }
  /// The pairs of the table, for kernels of the CPU.
  std::span<const AttentionPair> in_table() const;
  /// Whether the queries of all pairs stand at the last of their keys.
  bool at_last_keys() const { return at_last_keys_; }
  /// See Sequences::become().
  void refill(const AttentionPairs& made);

 private:
  std::vector<AttentionPair> list_;
  bool at_last_keys_ = true;
  Tensor table_;
};
struct AttentionInputs {
  Tensor q, k, v;
  AttentionOptions options;  ///< scale is set
  bool plain = false;        ///< variant "plain"
  AttentionPairs pairs;
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    for (const Tensor* t : {&q, &k, &v, &options.slopes, &options.query_scale, &pairs.table()}) fn(*t);
  }
};
/// [T, heads * head_dim] and [T, heads], in the rows of q. o has the dtype of q or its accumulation dtype;
/// lse has the accumulation dtype.
struct AttentionResult {
  Tensor o, lse;
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    for (const Tensor* t : {&o, &lse}) fn(*t);
  }
};
/// In the shapes of q, k and v, and their dtype or its accumulation dtype. An undefined gradient is not
/// wanted.
struct AttentionGrads {
  Tensor dq, dk, dv;
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    for (const Tensor* t : {&dq, &dk, &dv}) fn(*t);
  }
};

/// Inputs without pairs: checks shapes, dtypes and options as `attention` does, sets the scale, and takes the
/// variant from the context.
AttentionInputs attention_inputs(const Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const AttentionOptions& options);

/// o and lse of the rows of q in `pairs`, whose ranges of queries are disjoint; other rows stay as they are.
/// With Into::add, o and lse hold the attention of the same queries to other keys, and get both combined:
///     lse = log(e^lse1 + e^lse2),     o = o1 e^(lse1 - lse) + o2 e^(lse2 - lse)
/// Rows of several calls keep all digits when o has the accumulation dtype.
void partial_attention(const AttentionResult& out, const AttentionInputs& in, Into how);

/// The contribution of the pairs to the gradients, by the formulas of `attention`. `whole` are o and lse over
/// all keys of a query, o in the dtype of q. Ranges of queries are disjoint, and so are ranges of keys. Sets
/// or adds to the rows in `pairs`; other rows stay as they are.
void partial_attention_backward(const AttentionGrads& out, const Tensor& d_o, const AttentionResult& whole,
                                const AttentionInputs& in, Into how);

}  // namespace nemocube
