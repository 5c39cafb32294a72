#include "train/finetune/embedding_repair.h"

#include <cmath>
#include <map>
#include <span>
#include <vector>

namespace nemocube {
namespace {

constexpr std::int64_t most_at_once = 1 << 20;  // elements in f32

/// Calls fn(row, column, value) for the elements that this rank counts.
template <class Fn>
void for_counted(const Parameter& p, Fn&& fn) {
  if (!p.counts || p.own.numel() == 0) return;
  const std::int64_t width = p.shard.global_shape()[1];
  const Tensor own = p.own.reshape({-1});
  std::size_t gap = 0;
  p.shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
    for (std::int64_t done = 0; done < count; done += most_at_once) {
      const std::int64_t size = std::min(most_at_once, count - done);
      const Tensor values =
          own.narrow(0, local + done, size).to(DType::f32).to(Device::cpu);  // once, at the start of a run
      const float* v = values.data<float>();
      for (std::int64_t i = 0; i < size; ++i) {
        const std::int64_t at = local + done + i, element = global + done + i;
        while (gap < p.counted_elsewhere.size() && p.counted_elsewhere[gap].end <= at) ++gap;
        const bool elsewhere = gap < p.counted_elsewhere.size() && p.counted_elsewhere[gap].begin <= at;
        if (!elsewhere) fn(element / width, element % width, v[i]);
      }
    }
  });
}

bool is_healthy(double square, double min_norm) {
  return std::isfinite(square) && std::sqrt(square) > min_norm;
}

}  // namespace

std::int64_t repair_embeddings(Stack& model, const EmbeddingRepair& options, Communicator* ranks) {
  const ModelConfig& config = model.config();
  require(
      !config.tie_word_embeddings,
      "embedding_row_repair: the head of this model has the weight of the embeddings, so there are no other "
      "rows to repair them by");
  const std::int64_t tokens = config.vocab_size, width = config.hidden_size;
  Parameter* const embeddings = model.parameters().find(embeddings_name() / "weight");
  const Parameter* const head = model.parameters().find(head_name() / "weight");

  std::vector<double> squares(static_cast<std::size_t>(tokens));
  if (embeddings)
    for_counted(*embeddings, [&](std::int64_t row, std::int64_t, double v) {
      squares[static_cast<std::size_t>(row)] += v * v;
    });
  if (ranks) ranks->host_all_reduce(std::span(squares));
  std::map<std::int64_t, std::int64_t> damaged;  // row to its place below
  double sum = 0;
  for (std::int64_t row = 0; row < tokens; ++row) {
    const double square = squares[static_cast<std::size_t>(row)];
    if (is_healthy(square, options.min_norm))
      sum += square;
    else
      damaged.emplace(row, std::ssize(damaged));
  }
  const auto count = std::ssize(damaged);
  if (count == 0) return 0;
  require(count <= options.max_rows, "embedding_row_repair: ", count,
          " rows of the embeddings are damaged, the first for token ", damaged.begin()->first,
          "; want at most max_rows (", options.max_rows, ")");
  require(count < tokens, "embedding_row_repair: every row of the embeddings is damaged");
  const double healthy = std::sqrt(sum / static_cast<double>(tokens - count));

  std::vector<double> rows(static_cast<std::size_t>(count * width));  // of lm_head
  if (head)
    for_counted(*head, [&](std::int64_t row, std::int64_t column, double v) {
      if (const auto found = damaged.find(row); found != damaged.end())
        rows[static_cast<std::size_t>(found->second * width + column)] = v;
    });
  if (ranks) ranks->host_all_reduce(std::span(rows));
  for (const auto& [row, place] : damaged) {
    double* const values = rows.data() + place * width;
    double square = 0;
    for (std::int64_t i = 0; i < width; ++i) square += values[i] * values[i];
    require(is_healthy(square, options.min_norm), "embedding_row_repair: the rows of token ", row,
            " are damaged in the embeddings and in lm_head");
    for (std::int64_t i = 0; i < width; ++i) values[i] *= healthy / std::sqrt(square);
  }
  if (!embeddings || embeddings->own.numel() == 0) return count;
  const Tensor repaired = Tensor::from(rows, {count * width}), own = embeddings->own.reshape({-1});
  embeddings->shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t run) {
    for (std::int64_t at = global; at < global + run;) {
      const std::int64_t row = at / width, end = std::min((row + 1) * width, global + run);
      if (const auto found = damaged.find(row); found != damaged.end())
        own.narrow(0, local + at - global, end - at)
            .copy_from(repaired.narrow(0, found->second * width + at % width, end - at));
      at = end;
    }
  });
  return count;
}

}  // namespace nemocube
