#include "parallel/context_parallel/sequence_cut.h"

#include <algorithm>
#include <limits>

namespace nemocube {
namespace {

/// Chunk i of `chunks` (even_rows() gives their lengths).
Range chunk_of(std::int64_t length, std::int64_t chunks, std::int64_t i) {
  const auto begin = [&](std::int64_t at) { return at * (length / chunks) + std::min(at, length % chunks); };
  return {begin(i), begin(i + 1)};
}

}  // namespace

SequenceCut::SequenceCut(const Sequences& whole, std::int64_t ranks, std::int64_t rank)
    : whole_(whole), ranks_(ranks), rank_(rank) {
  expect(rank >= 0 && rank < ranks, "sequence cut: rank ", rank, " of ", ranks);
}

std::array<Range, 2> SequenceCut::chunks(std::int64_t i, std::int64_t rank) const {
  const std::int64_t length = whole_.length(i), count = 2 * ranks_;
  return {chunk_of(length, count, rank), chunk_of(length, count, count - 1 - rank)};
}

Sequences SequenceCut::local(std::int64_t rank) const {
  Sequences result;
  for (std::int64_t i = 0; i < whole_.count(); ++i) {
    const auto [lower, upper] = chunks(i, rank);
    result.offsets.push_back(result.tokens() + lower.size() + upper.size());
  }
  return result;
}

std::vector<std::int64_t> SequenceCut::rows_of_ranks() const {
  std::vector<std::int64_t> result;
  for (std::int64_t r = 0; r < ranks_; ++r) result.push_back(local(r).tokens());
  return result;
}

std::vector<std::int64_t> SequenceCut::rows(std::int64_t rank) const {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < whole_.count(); ++i)
    for (const Range& chunk : chunks(i, rank))
      for (std::int64_t row = chunk.begin; row < chunk.end; ++row) result.push_back(whole_.begin(i) + row);
  return result;
}

Permutation SequenceCut::to_rank_major_order() const {
  const std::int64_t tokens = whole_.tokens();
  require(tokens <= std::numeric_limits<std::int32_t>::max(), "context parallel: ", tokens,
          " tokens do not fit 32-bit row numbers");
  // One expert, whose rows come in any order.
  Permutation p{Tensor::from(std::vector<std::int64_t>{0, tokens}, {2}),
                Tensor::empty({tokens}, DType::i32, Device::cpu),
                Tensor::empty({tokens, 1}, DType::i32, Device::cpu)};
  auto *source = p.source.data<std::int32_t>(), *slot = p.slot.data<std::int32_t>();
  std::int32_t at = 0;
  for (std::int64_t r = 0; r < ranks_; ++r)
    for (const std::int64_t row : rows(r)) {
      source[at] = static_cast<std::int32_t>(row);
      slot[row] = at++;
    }
  return p;
}

Permutation SequenceCut::to_natural_order() const {
  const Permutation p = to_rank_major_order();
  const std::int64_t tokens = whole_.tokens();
  return {p.offsets, p.slot.reshape({tokens}), p.source.reshape({tokens, 1})};
}

Tensor SequenceCut::own(const Tensor& tokens) const {
  check_shape("context parallel: tokens", tokens, {whole_.tokens()});
  std::vector<std::int64_t> result;
  for (const std::int64_t row : rows(rank_)) result.push_back(tokens.data<std::int64_t>()[row]);
  return Tensor::from(result, {std::ssize(result)});
}

RowCut row_cut(std::int64_t ranks, std::int64_t rank) {
  return [=](const Sequences& whole) { return SequenceCut(whole, ranks, rank).local(); };
}

}  // namespace nemocube
