#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

/// Reverse-mode automatic differentiation by a tape of hand-written closures.
///
/// A differentiable operation computes its result and, when an input wants a gradient and the context has a
/// tape, records one closure that reads the gradient of its output and adds to the gradients of its inputs.
/// The tape only orders the closures. Many tapes may be alive at once (one for each microbatch in flight); a
/// tape belongs to one thread at a time. A closure and the tensors it keeps are released as soon as the
/// closure has run.
namespace nemocube {

/// Whether a kernel overwrites its output or adds to it.
enum class Into { set, add };
/// Where a kernel writes its result, and how.
struct Output {
  Tensor to;
  Into how = Into::set;
};

/// The gradient of one value.
///
/// - leaf: a parameter; a lasting buffer in the accumulation dtype (f32, f64 for f64) that sums over
///   microbatches
/// - intermediate: created and consumed within one backward pass, in the dtype of the value
class GradNode {
 public:
  GradNode(const Shape& shape, DType dtype, Device device, bool leaf);
  /// An intermediate whose gradient is a window of the gradient of `parent`: the columns from `start` on, in
  /// the number that the last dimension of `shape` says.
  GradNode(std::shared_ptr<GradNode> parent, const Shape& shape, std::int64_t start);

  bool leaf() const { return leaf_; }
  const Shape& shape() const { return shape_; }
  Device device() const { return device_; }

  /// Leaf only. Where and how a kernel writes its contribution: the first one since clear() with `set`, later
  /// ones with `add`.
  Output into();
  /// A tensor with the shape and dtype of the gradient. The caller writes one whole contribution into the
  /// tensor and passes it to add(). The tensor may be a window of a larger buffer.
  Tensor buffer();
  /// Whether buffer() would return existing memory (a window, or the gradient of a leaf), not new memory.
  bool has_place() const { return !filled_ && (parent_ || (leaf_ && grad_.defined())); }
  /// Adds the contribution `g`, of the same shape and dtype as the value (any float dtype for a leaf). The
  /// first contribution is stored as it is. Later ones are added in place when no other tensor shares the
  /// stored gradient.
  void add(Tensor g);

  bool filled() const { return filled_; }
  /// The sum so far; undefined when nothing contributed.
  const Tensor& grad() const { return grad_; }
  /// Moves the sum out, for the closure that consumes it (intermediate only).
  Tensor take();
  /// Forgets the sum; a leaf keeps its buffer for the next use.
  void clear();
  /// Leaf only. `place`, of the leaf's shape and accumulation dtype, becomes the buffer, also on another
  /// device; the sum so far is forgotten.
  void set_place(Tensor place);

  /// Intermediate only. Computes the value again, with the same bits, from tensors that the closure of its
  /// operation keeps anyway. The operation sets this where its result is large and quickly made, and clears
  /// this when its closure runs. Empty: a closure that needs the value in backward keeps the tensor (Kept).
  std::function<Tensor()> again;

 private:
  void make_buffer();  // of a leaf, where it has none
  Tensor window();     // this node's part of the parent's buffer
  Shape shape_;
  DType dtype_;
  Device device_;
  bool leaf_;
  bool filled_ = false;
  Tensor grad_;
  std::shared_ptr<GradNode> parent_;
  std::int64_t start_ = 0;
};

/// A tensor that may want a gradient.
class Var {
 public:
  Var() = default;
  Var(Tensor value) : value_(std::move(value)) {}  // NOLINT: a constant converts implicitly
  Var(Tensor value, std::shared_ptr<GradNode> node) : value_(std::move(value)), node_(std::move(node)) {}
  /// A new leaf, for tests and for inputs whose gradient is wanted.
  static Var leaf(Tensor value);

  const Tensor& value() const { return value_; }
  bool defined() const { return value_.defined(); }
  bool needs_grad() const { return node_ != nullptr; }
  const std::shared_ptr<GradNode>& node() const { return node_; }
  const Shape& shape() const { return value_.shape(); }
  const Tensor& grad() const;  ///< of a leaf, after backward; std::logic_error when it wants none

 private:
  Tensor value_;
  std::shared_ptr<GradNode> node_;
};

/// A value that a closure needs: the tensor, or how the tensor is computed again (GradNode::again).
class Kept {
 public:
  Kept() = default;
  explicit Kept(const Var& x) {
    if (x.needs_grad() && x.node()->again)
      again_ = x.node()->again;
    else
      value_ = x.value();
  }
  Tensor get() const { return again_ ? again_() : value_; }

 private:
  Tensor value_;
  std::function<Tensor()> again_;
};

class Tape {
 public:
  /// With an `outer` tape, weight work of this tape goes to the outer one.
  explicit Tape(Tape* outer = nullptr) : outer_(outer) {}
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// Records a closure. Closures run in reverse order. An Error or std::logic_error that a closure throws
  /// gets "backward of NAME: " before its text.
  void record(const char* name, std::function<void()> backward);
  /// Seeds `output` with `gradient`, which has the shape and dtype of `output`, and runs every closure, last
  /// to first. The tape is empty afterwards.
  void backward(const Var& output, const Tensor& gradient);
  void backward(std::span<const Var> outputs, std::span<const Tensor> gradients);
  std::size_t size() const { return entries_.size(); }

  /// For closures: work on gradients of weights, on which no other closure waits. Runs at once, or, after
  /// defer_weight_work(), in run_weight_work(), in the order of the calls.
  void weight_work(std::function<void()> work);
  void defer_weight_work() { deferred_ = true; }
  void run_weight_work();

 private:
  struct Entry {
    const char* name;
    const char* owner;  // of memory, while the closure was recorded and again while it runs
    std::function<void()> backward;
  };
  Tape* outer_;
  std::vector<Entry> entries_;
  bool deferred_ = false;
  std::vector<Entry> weight_work_;
};

struct KernelChoice;

/// What an operation needs besides its operands.
struct Context {
  Tape* tape = nullptr;                   ///< null: nothing is recorded, and nobody will want gradients
  const KernelChoice* kernels = nullptr;  ///< chosen variants; null: the first variant of each operation

  bool records(std::initializer_list<const Var*> inputs) const {
    if (!tape) return false;
    for (const Var* v : inputs)
      if (v->needs_grad()) return true;
    return false;
  }
};

/// The result of an operation: `value` with a fresh intermediate node when `wants`, else a constant.
Var make_result(Tensor value, bool wants);

/// Activation checkpoint. Runs `part` without recording; only its input is kept (Kept). In backward, one
/// closure runs `part` again on a tape of its own and continues from the gradient of the result. `part`
/// must compute the same values again (no random state). Gradients of parameters that `part` uses accumulate
/// as always, and their deferred weight work goes to ctx.tape.
using Recomputed = std::function<Var(Context&, const Var&)>;
Var checkpoint(Context& ctx, const char* name, const Recomputed& part, const Var& input);

/// The same for a part with several inputs and results. The gradients of results that nothing has read are
/// zeros; where nothing has read any, the closure does nothing.
using RecomputedMany = std::function<std::vector<Var>(Context&, std::span<const Var>)>;
std::vector<Var> checkpoint(Context& ctx, const char* name, const RecomputedMany& part,
                            std::span<const Var> inputs);

}  // namespace nemocube
