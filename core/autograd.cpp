#include "core/autograd.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/add.h"
#include "core/allocation_owner.h"
#include "core/trace.h"

namespace nemocube {
namespace {

bool same_place(const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() && a.same_storage(b) && a.address() == b.address() &&
         a.shape() == b.shape();
}

/// In a trace: the closures of one owner that run one after another are a span of that name.
class OwnerSpans {
 public:
  void next(const char* owner) {
    if (owner == owner_) return;
    span_.reset();
    owner_ = owner;
    if (owner) span_.emplace(trace::Category::backward, owner);
  }

 private:
  const char* owner_ = nullptr;
  std::optional<trace::Span> span_;
};

}  // namespace

GradNode::GradNode(const Shape& shape, DType dtype, Device device, bool leaf)
    : shape_(shape), dtype_(leaf ? accumulate_dtype(dtype) : dtype), device_(device), leaf_(leaf) {}

GradNode::GradNode(std::shared_ptr<GradNode> parent, const Shape& shape, std::int64_t start)
    : shape_(shape),
      dtype_(parent->dtype_),
      device_(parent->device_),
      leaf_(false),
      parent_(std::move(parent)),
      start_(start) {}

Tensor GradNode::window() {
  if (!parent_->grad_.defined()) parent_->grad_ = parent_->buffer();
  const Tensor& whole = parent_->grad_;
  return whole.narrow(-1, start_, shape_[shape_.ndim() - 1]);
}

void GradNode::make_buffer() {
  const AllocationOwner owner("gradients");
  if (!grad_.defined()) grad_ = Tensor::empty(shape_, dtype_, device_);
}

Output GradNode::into() {
  expect(leaf_, "GradNode::into of an intermediate value");
  make_buffer();
  const Into how = filled_ ? Into::add : Into::set;
  filled_ = true;
  return {grad_, how};
}

Tensor GradNode::buffer() {
  if (!filled_ && leaf_ && grad_.defined()) return grad_;
  if (!filled_ && parent_) return window();
  return Tensor::empty(shape_, dtype_, device_);
}

void GradNode::add(Tensor g) {
  expect(g.shape() == shape_, "gradient of shape ", g.shape(), " for a value of shape ", shape_);
  if (filled_) {
    if (leaf_ || parent_ || grad_.unique()) {
      add_elements(grad_, grad_, g);
    } else {
      const Tensor sum = Tensor::empty(shape_, dtype_, device_);
      add_elements(sum, grad_, g);
      grad_ = sum;
    }
    return;
  }
  filled_ = true;
  if (parent_) {
    grad_ = window();
    if (!same_place(grad_, g)) grad_.copy_from(g);
  } else if (leaf_) {
    make_buffer();
    if (!same_place(grad_, g)) grad_.copy_from(g);
  } else {
    expect(g.dtype() == dtype_, "gradient of dtype ", g.dtype(), " for a value of dtype ", dtype_);
    grad_ = std::move(g);
  }
}

Tensor GradNode::take() {
  expect(!leaf_, "GradNode::take of a leaf");
  filled_ = false;
  return std::exchange(grad_, Tensor());
}

void GradNode::clear() {
  filled_ = false;
  if (!leaf_) grad_ = Tensor();
}

void GradNode::set_place(Tensor place) {
  expect(leaf_ && place.shape() == shape_ && place.dtype() == dtype_, "place of ", place.dtype(), ' ',
         place.shape(), " for a ", leaf_ ? "leaf" : "value", " with a gradient of ", dtype_, ' ', shape_);
  device_ = place.device();
  grad_ = std::move(place);
  filled_ = false;
}

Var Var::leaf(Tensor value) {
  auto node = std::make_shared<GradNode>(value.shape(), value.dtype(), value.device(), true);
  return Var(std::move(value), std::move(node));
}

const Tensor& Var::grad() const {
  expect(node_ != nullptr, "gradient of a value that wants none");
  return node_->grad();
}

Var make_result(Tensor value, bool wants) {
  if (!wants) return Var(std::move(value));
  auto node = std::make_shared<GradNode>(value.shape(), value.dtype(), value.device(), false);
  return Var(std::move(value), std::move(node));
}

void Tape::record(const char* name, std::function<void()> backward) {
  entries_.push_back({name, AllocationOwner::named(), std::move(backward)});
}

void Tape::backward(const Var& output, const Tensor& gradient) { backward({&output, 1}, {&gradient, 1}); }

void Tape::backward(std::span<const Var> outputs, std::span<const Tensor> gradients) {
  expect(outputs.size() == gradients.size(), "backward with ", outputs.size(), " outputs and ",
         gradients.size(), " gradients");
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].needs_grad()) outputs[i].node()->add(gradients[i]);
  OwnerSpans spans;
  while (!entries_.empty()) {
    Entry entry = std::move(entries_.back());
    entries_.pop_back();
    // A tape inside of another one runs within a block of the outer one.
    if (!outer_) spans.next(entry.owner);
    const AllocationOwner owner(entry.owner);
    try {
      entry.backward();
    } catch (const OutOfMemory& e) {
      throw OutOfMemory(cat("backward of ", entry.name, ": ", e.what()));
    } catch (const Error& e) {
      fail("backward of ", entry.name, ": ", e.what());
    } catch (const std::logic_error& e) {
      throw std::logic_error(cat("backward of ", entry.name, ": ", e.what()));
    }
  }
}

void Tape::weight_work(std::function<void()> work) {
  if (outer_) return outer_->weight_work(std::move(work));
  if (!deferred_) return work();
  weight_work_.push_back({"weight work", AllocationOwner::named(), std::move(work)});
}

void Tape::run_weight_work() {
  OwnerSpans spans;
  for (Entry& work : std::exchange(weight_work_, {})) {
    spans.next(work.owner);
    const AllocationOwner owner(work.owner);
    std::exchange(work.backward, nullptr)();
  }
}

Var checkpoint(Context& ctx, const char* name, const Recomputed& part, const Var& input) {
  const RecomputedMany many = [part](Context& c, std::span<const Var> in) {
    return std::vector{part(c, in[0])};
  };
  return checkpoint(ctx, name, many, {&input, 1}).front();
}

std::vector<Var> checkpoint(Context& ctx, const char* name, const RecomputedMany& part,
                            std::span<const Var> inputs) {
  if (!ctx.tape) return part(ctx, inputs);
  Context silent = ctx;
  silent.tape = nullptr;
  std::vector<Var> detached;
  std::vector<Kept> kept;
  std::vector<std::shared_ptr<GradNode>> nodes, outs;
  for (const Var& input : inputs) {
    detached.emplace_back(input.value());
    kept.emplace_back(input);
    nodes.push_back(input.node());
  }
  std::vector<Var> results;
  // The part's parameters may want gradients even when its inputs do not, so the results always do.
  for (const Var& result : part(silent, detached)) results.push_back(make_result(result.value(), true));
  for (const Var& result : results) outs.push_back(result.node());
  detached.clear();
  ctx.tape->record(name, [replay = ctx, part, kept = std::move(kept), nodes = std::move(nodes),
                          outs = std::move(outs)]() mutable {
    if (std::ranges::none_of(outs, &GradNode::filled)) return;
    std::vector<Tensor> gradients(outs.size());
    for (std::size_t i = 0; i < outs.size(); ++i)
      if (outs[i]->filled()) gradients[i] = outs[i]->take();
    Tape tape(replay.tape);
    replay.tape = &tape;
    std::vector<Var> in;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const Tensor value = kept[i].get();
      in.push_back(nodes[i] ? make_result(value, true) : Var(value));
    }
    std::vector<Var> read;
    std::vector<Tensor> of_read;
    const std::vector<Var> again = part(replay, in);
    for (std::size_t i = 0; i < again.size(); ++i) {
      if (!gradients[i].defined()) continue;
      read.push_back(again[i]);
      of_read.push_back(std::exchange(gradients[i], {}));
    }
    tape.backward(read, of_read);
    for (std::size_t i = 0; i < in.size(); ++i)
      if (nodes[i] && in[i].node()->filled()) nodes[i]->add(in[i].node()->take());
  });
  return results;
}

}  // namespace nemocube
