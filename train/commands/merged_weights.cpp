#include "train/commands/merged_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "data/hf/hf_config.h"
#include "data/hf/hf_weights.h"
#include "data/peft/peft_directory.h"
#include "data/safetensors/format.h"
#include "model/tensor_spec.h"
#include "ops/matmul/matmul.h"

namespace nemocube {
namespace {

constexpr std::int64_t most_elements = std::int64_t{1} << 22;  // compared at once

/// Of an element: where, what the copy has, what it should have, and the weight without the adapter.
struct Worst {
  double error = 0, got = 0, want = 0, without = 0, allowed = 0;
  std::int64_t expert = -1, row = 0, column = 0;
};

/// Distance of 1 from the next number.
double spacing(DType dtype) {
  if (dtype == DType::bf16) return std::ldexp(1, -7);
  return dtype == DType::f64 ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
}

/// The Euclidean norms of rows, or of columns.
std::vector<double> norms(const Tensor& matrix, bool of_rows) {
  const std::int64_t rows = matrix.dim(0), columns = matrix.dim(1);
  std::vector<double> sums(static_cast<std::size_t>(of_rows ? rows : columns));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) {
      const double x = matrix.data<double>()[i * columns + j];
      sums[static_cast<std::size_t>(of_rows ? i : j)] += x * x;
    }
  for (double& sum : sums) sum = std::sqrt(sum);
  return sums;
}

/// One weight of both models, a part at a time.
class MergedWeight {
 public:
  MergedWeight(const HfWeights& source, const HfWeights& copy, const TensorSpec& spec,
               const LoraModule& module)
      : source_(source),
        copy_(copy),
        spec_(spec),
        module_(module),
        stored_(dtype_of_stored(copy.stored(spec.name).front().value_dtype()).value_or(DType::f32)) {}

  void compare(const Tensor& a, const Tensor& b) {
    if (!spec_.experts) return compare_matrix(a, b, -1);
    for (std::int64_t e = 0; e < spec_.shape[0]; ++e) compare_matrix(a.select(e), b.select(e), e);
  }
  const Worst& worst() const { return worst_; }
  double largest_change() const { return largest_change_; }
  /// Whether the adapter changes the weight, and the copy has the weight without the adapter.
  bool unresolved() const { return largest_change_ > 0 && same_; }

 private:
  void compare_matrix(const Tensor& a, const Tensor& b, std::int64_t expert) {
    const int last = spec_.shape.ndim() - 1;
    const std::int64_t rows = spec_.shape[last - 1], columns = spec_.shape[last];
    const std::vector<double> of_a = norms(a, false), of_b = norms(b, true);
    const std::int64_t step = std::max<std::int64_t>(1, most_elements / columns);
    for (std::int64_t first = 0; first < rows; first += step) {
      const std::int64_t count = std::min(step, rows - first);
      const Tensor product = Tensor::empty({count, columns}, DType::f64, Device::cpu);  // of files
      matmul({product, Into::set}, b.narrow(0, first, count), false, a, false);
      compare_rows(product, of_a, of_b, expert, first);
    }
  }

  void compare_rows(const Tensor& product, const std::vector<double>& of_a, const std::vector<double>& of_b,
                    std::int64_t expert, std::int64_t first) {
    const std::int64_t columns = product.dim(1);
    const Tensor plain = rows_of(source_, expert, first, product.dim(0)),
                 got = rows_of(copy_, expert, first, product.dim(0)),
                 rounded = plain.to(stored_).to(DType::f64);
    const double s = module_.scale(), half = spacing(stored_) / 2,
                 of_sum = static_cast<double>(module_.rank + 4) * std::numeric_limits<float>::epsilon(),
                 tiny = std::numeric_limits<float>::min();
    for (std::int64_t i = 0; i < product.numel(); ++i) {
      const std::int64_t row = first + i / columns, column = i % columns;
      const double change = s * product.data<double>()[i], w = plain.data<double>()[i], want = w + change,
                   have = got.data<double>()[i];
      const double norm = of_b[static_cast<std::size_t>(row)] * of_a[static_cast<std::size_t>(column)];
      const double allowed = half * std::abs(want) + of_sum * (std::abs(w) + std::abs(s) * norm) + tiny;
      const double error = std::abs(have - want) / allowed;
      largest_change_ = std::max(largest_change_, std::abs(change));
      same_ = same_ && have == rounded.data<double>()[i];
      if (error <= worst_.error) continue;
      worst_ = {std::isnan(error) ? std::numeric_limits<double>::infinity() : error,
                have,
                want,
                w,
                allowed,
                expert,
                row,
                column};
    }
  }

  Tensor rows_of(const HfWeights& weights, std::int64_t expert, std::int64_t first,
                 std::int64_t count) const {
    const int rows = spec_.shape.ndim() - 2;
    Shard shard(spec_.shape);
    if (expert >= 0) shard = shard.cut(0, Range{expert, expert + 1});
    shard = shard.cut(rows, Range{first, first + count});
    const Tensor values = Tensor::empty(shard.shape(), DType::f64, Device::cpu);  // of files
    weights.read(std::vector<NamedTensor>{{spec_.name, values, shard}});
    return values.reshape({count, spec_.shape[rows + 1]});
  }

  const HfWeights &source_, &copy_;
  const TensorSpec& spec_;
  const LoraModule& module_;
  DType stored_;  // in the copy
  Worst worst_;
  double largest_change_ = 0;
  bool same_ = true;
};

std::string describe(const std::string& name, const Worst& w) {
  return cat("'", name, "', ", w.expert < 0 ? "" : cat("expert ", w.expert, ", "), "row ", w.row, ", column ",
             w.column, ": want ", w.want, " to within ", w.allowed, ", got ", w.got,
             "; without the adapter it is ", w.without);
}

}  // namespace

MergedWeights check_merged_weights(const std::filesystem::path& source, const std::filesystem::path& adapter,
                                   const std::filesystem::path& copy) {
  const ModelSetup setup = with_stored_mtp(read_hf_config(source));
  const PeftDirectory peft(adapter, setup);
  const HfWeights from(source), to(copy);
  MergedWeights found;
  std::int64_t wrong = 0;
  std::string first;
  for (const TensorSpec& spec : tensor_specs(setup)) {
    const std::string module(module_of_weight(spec.name));
    const LoraModule* const adapted = peft.find(module);
    if (!spec.linear || !adapted) continue;
    MergedWeight weight(from, to, spec, *adapted);
    weight.compare(peft.tensor(factor_name(module, 'A')).to(DType::f64),
                   peft.tensor(factor_name(module, 'B')).to(DType::f64));
    ++found.weights;
    found.largest_change = std::max(found.largest_change, weight.largest_change());
    found.largest_error = std::max(found.largest_error, weight.worst().error);
    if (weight.unresolved()) found.unresolved.push_back(spec.name);
    if (weight.worst().error <= 1) continue;
    if (wrong++ == 0) first = describe(spec.name, weight.worst());
  }
  require(wrong == 0, copy.string(), ": ", wrong, " of ", found.weights, " adapted weights are not those of ",
          source.string(), " with ", adapter.string(), ": ", first, "; the copy was kept");
  return found;
}

}  // namespace nemocube
