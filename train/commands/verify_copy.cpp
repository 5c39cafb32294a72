#include "train/commands/verify_copy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/log.h"
#include "core/quote.h"
#include "core/rng.h"
#include "data/hf/language_part.h"
#include "data/safetensors/reader.h"
#include "train/commands/merged_weights.h"
#include "train/model_io/model_io.h"

namespace nemocube {
namespace {

constexpr std::int64_t verified_rows = 2, verified_length = 48;

/// Of fixed rows, in f64.
Tensor logits_of(const std::filesystem::path& dir, const std::filesystem::path& adapter, DType dtype) {
  const OpenedModel source(dir);
  const LoadedModel loaded =
      load_model(source, dtype, Device::cpu, with_adapter(source, adapter));  // where `convert` works
  const RandomStream draw(0, "rows to verify a copy with");
  const auto vocabulary = static_cast<std::uint64_t>(loaded.model->config().vocab_size);
  std::vector<std::int64_t> ids;
  for (std::uint64_t i = 0; std::ssize(ids) < verified_rows * verified_length; ++i)
    ids.push_back(static_cast<std::int64_t>(draw.below(i, vocabulary)));
  Context ctx;
  const Var hidden = loaded.model->hidden(ctx, Tensor::from(ids, {std::ssize(ids)}),
                                          Sequences::uniform(verified_rows, verified_length));
  return loaded.model->logits(hidden.value()).to(DType::f64);
}

double epsilon(DType dtype) {
  if (dtype == DType::bf16) return std::ldexp(1, -8);
  return dtype == DType::f64 ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
}

/// The one with the fewest digits.
DType coarsest_dtype(const std::filesystem::path& dir) {
  DType coarsest = DType::f64;
  const SafetensorsTensors tensors = open_safetensors_model(dir);
  const auto is_of_language = language_tensors(directory_model(dir), tensors);
  for (const auto& [name, stored] : tensors)
    if (!is_of_language(name))
      continue;  // of a part that computes no logits
    else if (const auto dtype = dtype_of_stored(stored.entry->dtype); dtype && is_float(*dtype))
      if (epsilon(*dtype) > epsilon(coarsest)) coarsest = *dtype;
  return coarsest;
}

struct Difference {
  double largest = 0, largest_logit = 0;
  bool finite = true;
};

Difference difference(const Tensor& a, const Tensor& b) {
  Difference found;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const double x = a.data<double>()[i], y = b.data<double>()[i];
    found.finite = found.finite && std::isfinite(x) && std::isfinite(y);
    found.largest = std::max(found.largest, std::abs(x - y));
    found.largest_logit = std::max(found.largest_logit, std::abs(x));
  }
  return found;
}

void verify_merged_weights(const std::filesystem::path& source, const std::filesystem::path& adapter,
                           const std::filesystem::path& copy) {
  const MergedWeights found = check_merged_weights(source, adapter, copy);
  log_info("verified: ", counted(found.weights, "adapted weight"), " of ", copy.string(),
           ": each element is W + s B A, rounded; ", "the largest change is ", found.largest_change);
  if (found.unresolved.empty()) return;
  log_warning(copy.string(), ": the adapter changes ", counted(std::ssize(found.unresolved), "weight"),
              " by less than the dtype of the copy resolves, and so not at all, the first ",
              quote(found.unresolved[0]), "; --dtype f32 keeps such changes");
}

}  // namespace

void verify_copy(const std::filesystem::path& source, const std::filesystem::path& adapter,
                 const std::filesystem::path& copy) {
  const ModelConfig config = read_hf_config(copy);
  const DType stored = config.dtype.value_or(DType::f32);
  const bool merged = !adapter.empty();
  if (merged) verify_merged_weights(source, adapter, copy);
  // A merge is formed in f32 for a copy in f64, too. A copy of quantized weights has rounded their values.
  const DType copied = coarsest_dtype(copy);
  const bool rounded = !merged && HfWeights(source).quantized() && epsilon(copied) > epsilon(stored);
  const DType computed = merged ? DType::f32 : rounded ? copied : stored;
  const Tensor want = logits_of(source, adapter, computed), got = logits_of(copy, {}, computed);
  const Difference found = difference(want, got);
  double bound = 0;
  if (merged)
    bound = (16 * epsilon(copied) + 32 * epsilon(computed)) *
            std::sqrt(static_cast<double>(config.num_layers() + 1)) * found.largest_logit;
  const std::string what = cat("logits of ", copy.string(), " and of ", source.string(),
                               merged ? cat(" with ", adapter.string()) : "", ", for ", verified_rows,
                               " rows of ", verified_length, " tokens, computed in ", computed);
  require(found.finite, what, ": not all are finite; the copy was kept");
  require(found.largest <= bound, what, ": want differences of at most ", bound, ", got ", found.largest,
          " (the largest logit is ", found.largest_logit, "); the copy was kept");
  log_info("verified: ", what, ": the largest difference is ", found.largest,
           merged ? cat(", at most ", bound, " is rounding") : "", " (the largest logit is ",
           found.largest_logit, ")");
}

}  // namespace nemocube
