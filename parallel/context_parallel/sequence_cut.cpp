#include "parallel/context_parallel/sequence_cut.h"

#include <limits>

namespace nemocube {
namespace {

/// Tables that are kept with the whole sequences.
struct Local {
  Sequences sequences;
};
struct RowsOfRanks {
  std::vector<std::int64_t> counts;
};
struct Orders {
  Permutation natural, rank_major;
};

}  // namespace

SequenceCut::SequenceCut(const Sequences& whole, std::int64_t ranks, std::int64_t rank)
    : whole_(whole), ranks_(ranks), rank_(rank) {
  expect(rank >= 0 && rank < ranks, "sequence cut: rank ", rank, " of ", ranks);
}

std::array<Range, 2> SequenceCut::chunks(std::int64_t i, std::int64_t rank) const {
  const Range all{0, whole_.length(i)};
  const std::int64_t count = 2 * ranks_;
  return {even_part(all, count, rank), even_part(all, count, count - 1 - rank)};
}

const Sequences& SequenceCut::local(std::int64_t rank) const {
  const auto make = [&] {
    std::vector<std::int64_t> offsets{0}, positions;
    for (std::int64_t i = 0; i < whole_.count(); ++i) {
      const auto [lower, upper] = chunks(i, rank);
      offsets.push_back(offsets.back() + lower.size() + upper.size());
    }
    for (const std::int64_t row : rows(rank))
      positions.push_back(whole_.positions()[static_cast<std::size_t>(row)]);
    return Local{Sequences(std::move(offsets), std::move(positions), whole_.last())
                     .numbered(whole_.numbers(), whole_.padded_length())};
  };
  return whole_.derived<Local>(Device::cpu, {ranks_, rank}, make).sequences;  // numbers for the host
}

const std::vector<std::int64_t>& SequenceCut::rows_of_ranks() const {
  const auto make = [&] {
    RowsOfRanks rows;
    for (std::int64_t r = 0; r < ranks_; ++r) rows.counts.push_back(local(r).tokens());
    return rows;
  };
  return whole_.derived<RowsOfRanks>(Device::cpu, {ranks_}, make).counts;  // numbers for the host
}

std::vector<std::int64_t> SequenceCut::rows(std::int64_t rank) const {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < whole_.count(); ++i)
    for (const Range& chunk : chunks(i, rank))
      for (std::int64_t row = chunk.begin; row < chunk.end; ++row) result.push_back(whole_.begin(i) + row);
  return result;
}

namespace {

const Orders& orders(const SequenceCut& cut, Device device) {
  const auto make = [&] {
    const std::int64_t tokens = cut.whole().tokens();
    require(tokens <= std::numeric_limits<std::int32_t>::max(), "context parallel: ", tokens,
            " tokens do not fit 32-bit row numbers");
    const Tensor source = Tensor::empty({tokens}, DType::i32, Device::cpu);   // made by the host
    const Tensor slot = Tensor::empty({tokens, 1}, DType::i32, Device::cpu);  // made by the host
    std::int32_t at = 0;
    for (std::int64_t r = 0; r < cut.ranks(); ++r)
      for (const std::int64_t row : cut.rows(r)) {
        source.data<std::int32_t>()[at] = static_cast<std::int32_t>(row);
        slot.data<std::int32_t>()[row] = at++;
      }
    const Permutation rank_major{.offsets = {}, .source = source.to(device), .slot = slot.to(device)};
    return Orders{inverse(rank_major), rank_major};
  };
  return cut.whole().derived<Orders>(device, {cut.ranks()}, make);
}

}  // namespace

const Permutation& SequenceCut::to_natural_order(Device device) const {
  return orders(*this, device).natural;
}

const Permutation& SequenceCut::to_rank_major_order(Device device) const {
  return orders(*this, device).rank_major;
}

Tensor SequenceCut::own(const Tensor& tokens) const {
  check_shape("context parallel: tokens", tokens, {whole_.tokens()});
  std::vector<std::int64_t> result;
  for (const std::int64_t row : rows(rank_)) result.push_back(tokens.data<std::int64_t>()[row]);
  return Tensor::from(result, {std::ssize(result)});
}

}  // namespace nemocube
