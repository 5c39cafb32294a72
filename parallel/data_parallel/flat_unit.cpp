#include "parallel/data_parallel/flat_unit.h"

#include <algorithm>

#include "core/allocation_owner.h"

namespace nemocube {
namespace {

std::int64_t aligned(std::int64_t elements, std::int64_t to) { return (elements + to - 1) / to * to; }

/// The ranges within `part`, as positions in `part`.
std::vector<Range> within(const std::vector<Range>& ranges, const Range& part) {
  std::vector<Range> inside;
  for (const Range& r : ranges) {
    const Range common{std::max(r.begin, part.begin), std::min(r.end, part.end)};
    if (common.begin < common.end) inside.push_back({common.begin - part.begin, common.end - part.begin});
  }
  return inside;
}

}  // namespace

std::optional<std::int64_t> unit_of(const TensorName& parameter) {
  return parameter.part == NamePart::mixer ? parameter.block_of_model() : std::nullopt;
}

FlatLayout::FlatLayout(std::span<const std::int64_t> counts, std::int64_t ranks) {
  std::int64_t end = 0;
  for (const std::int64_t count : counts) {
    starts.push_back(end);
    end += aligned(count, alignment);
  }
  size = aligned(end, alignment * ranks);
  shard = size / ranks;
}

FlatUnit::FlatUnit(std::vector<Parameter*> parameters, ZeroLevel level, int rank, int ranks, Device device)
    : parameters_(std::move(parameters)) {
  expect(!parameters_.empty(), "flat unit without parameters");
  const DType dtype = parameters_[0]->value.dtype();
  std::vector<std::int64_t> counts;
  for (const Parameter* p : parameters_) {
    expect(p->value.dtype() == dtype && p->value.is_meta() && p->wants_grad() == trained(),
           "flat unit: ", p->name, " is ", p->value.dtype(), " on ", p->value.device(),
           p->wants_grad() ? ", trained" : ", not trained");
    counts.push_back(p->value.numel());
  }
  const FlatLayout layout(counts, ranks);
  const std::int64_t size = layout.size, shard = layout.shard, first = rank * shard;
  const auto zeros = [&](const char* owner, std::int64_t elements, DType of) {
    const AllocationOwner named(owner);
    return Tensor::zeros({elements}, of, device);
  };
  values_ = zeros("weights", size, dtype);
  if (trained()) gradients_ = zeros("gradients", size, accumulate_dtype(dtype));
  divides_values_ = level == ZeroLevel::parameters && ranks > 1;
  own_values_ = level == ZeroLevel::none ? values_
                : divides_values_        ? zeros("weights", shard, dtype)
                                         : values_.narrow(0, first, shard);
  if (trained())
    own_gradients_ = level == ZeroLevel::none       ? gradients_
                     : level < ZeroLevel::gradients ? gradients_.narrow(0, first, shard)
                                                    : zeros("gradients", shard, gradients_.dtype());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = *parameters_[i];
    const std::int64_t start = layout.starts[i], count = counts[i];
    const Shape shape = p.value.shape();
    const std::int64_t next = i + 1 < counts.size() ? layout.starts[i + 1] : size;
    if (trained() && start + count < next)
      gradient_gaps_.push_back(gradients_.narrow(0, start + count, next - start - count));
    p.value = values_.narrow(0, start, count).reshape(shape);
    if (trained()) p.node->set_place(gradients_.narrow(0, start, count).reshape(shape));
    if (level == ZeroLevel::none) {
      p.own = p.value;
      if (trained()) p.own_gradient = gradients_.narrow(0, start, count).reshape(shape);
      p.counts = p.counts && rank == 0;
      continue;
    }
    const std::int64_t begin = std::clamp(first - start, std::int64_t{0}, count);
    const std::int64_t own_end = std::clamp(first + shard - start, std::int64_t{0}, count);
    const std::int64_t at = std::clamp(start + begin - first, std::int64_t{0}, shard);
    p.shard = p.shard.flat({begin, own_end});
    p.own = own_values_.narrow(0, at, own_end - begin);
    if (trained()) p.own_gradient = own_gradients_.narrow(0, at, own_end - begin);
    p.counted_elsewhere = within(p.counted_elsewhere, {begin, own_end});
  }
}

void FlatUnit::restore_gradients() const {
  gradients_.storage()->restore();
  for (const Tensor& gap : gradient_gaps_) gap.zero();
}

void FlatUnit::complete_gradients() const {
  for (const Parameter* p : parameters_)
    if (!p->node->filled()) p->node->into().to.zero();
}

void FlatUnit::clear_gradients() const {
  for (const Parameter* p : parameters_) p->node->clear();
}

}  // namespace nemocube
