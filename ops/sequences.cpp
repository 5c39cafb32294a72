#include "ops/sequences.h"

#include <algorithm>
#include <utility>

namespace nemocube {
namespace {

Tensor uploaded(const std::vector<std::int64_t>& values, Device device) {
  return Tensor::from(values, {std::ssize(values)}).to(device);
}

}  // namespace

Sequences::Sequences() : Sequences(std::vector<std::int64_t>{0}) {}

Sequences::Sequences(std::vector<std::int64_t> offsets, std::vector<std::int64_t> positions, Last last) {
  const auto data = std::make_shared<Data>();
  data->offsets = std::move(offsets);
  data->positions = std::move(positions);
  data->last = last;
  data_ = data;
}

Sequences Sequences::numbered(std::vector<std::int64_t> numbers, std::int64_t padded_length) const {
  require(numbers.empty() || std::ssize(numbers) == count(), "sequences: want ", count(), " numbers, got ",
          numbers.size());
  Sequences result(offsets(), data_->positions, last());
  result.data_->numbers = std::move(numbers);
  result.data_->padded_length = padded_length;
  return result;
}

Sequences Sequences::clone() const { return numbered(numbers(), padded_length()); }

Sequences Sequences::uniform(std::int64_t count, std::int64_t length) {
  std::vector<std::int64_t> offsets{0};
  for (std::int64_t i = 1; i <= count; ++i) offsets.push_back(i * length);
  return Sequences(std::move(offsets));
}

Sequences Sequences::of_lengths(std::span<const std::int64_t> lengths, std::span<const std::int64_t> starts) {
  std::vector<std::int64_t> offsets{0}, positions;
  for (const std::int64_t n : lengths) offsets.push_back(offsets.back() + n);
  for (std::size_t i = 0; i < starts.size(); ++i)
    for (std::int64_t t = 0; t < lengths[i]; ++t) positions.push_back(starts[i] + t);
  return Sequences(std::move(offsets), std::move(positions));
}

Sequences Sequences::with_capacity(std::int64_t rows, std::int64_t count) const {
  require(!has_spare_rows(), "sequences: their capacity was set before");
  require(tokens() <= rows && this->count() <= count, "sequences: want room for ", this->count(),
          " sequences of ", tokens(), " rows, got a capacity of ", count, " and ", rows);
  std::vector<std::int64_t> to = offsets(), at = data_->positions;
  to.resize(static_cast<std::size_t>(count) + 1, tokens());
  to.push_back(rows);
  for (std::int64_t t = tokens(); !at.empty() && t < rows; ++t) at.push_back(t - tokens());
  std::vector<std::int64_t> numbers = this->numbers();
  // A numbered batch without rows has no numbers yet, and is known by its padded length. Its empty sequences
  // get numbers, because become() wants as many numbers on both sides.
  if (!numbers.empty() || padded_length() > 0) numbers.resize(static_cast<std::size_t>(count) + 1);
  return Sequences(std::move(to), std::move(at), Last::spare_rows)
      .numbered(std::move(numbers), padded_length());
}

void Sequences::become(const Sequences& other) {
  expect(other.tokens() == tokens() && other.count() == count() && other.last() == last() &&
             other.numbers().size() == numbers().size(),
         "sequences: ", count(), " of ", tokens(), " rows cannot become ", other.count(), " of ",
         other.tokens());
  if (data_ == other.data_) return;
  const std::lock_guard lock(data_->tables.mutex);
  std::erase_if(data_->tables.entries,
                [](const Tables::Entry& e) { return !e.maker.refill && e.device.is_host(); });
  for (const Tables::Entry& e : data_->tables.entries) {
    expect(e.maker.refill != nullptr, "sequences: a table on ", e.device, " cannot be filled again");
    e.maker.refill(e.value.get(), e.maker.make(other).get());
  }
  data_->offsets = other.data_->offsets;
  data_->positions = other.data_->positions;
  data_->numbers = other.data_->numbers;
  data_->padded_length = other.data_->padded_length;
}

std::int64_t Sequences::longest() const {
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < count(); ++i) most = std::max(most, length(i));
  return most;
}

const std::vector<std::int64_t>& Sequences::positions() const {
  if (!data_->positions.empty()) return data_->positions;
  return derived<std::vector<std::int64_t>>(Device::cpu, {}, [&] {
    std::vector<std::int64_t> positions;
    for (std::int64_t i = 0; i < count(); ++i)
      for (std::int64_t t = 0; t < length(i); ++t) positions.push_back(t);
    return positions;
  });
}

void Sequences::check(std::string_view what, std::int64_t tokens) const {
  require(!offsets().empty() && offsets().front() == 0, what, ": sequence offsets must start at 0");
  require(std::ranges::is_sorted(offsets()), what, ": sequence offsets must ascend");
  require(offsets().back() == tokens, what, ": sequences cover ", offsets().back(), " tokens, the input has ",
          tokens);
}

const SequenceTable& Sequences::on(Device device) const {
  return derived<SequenceTable>(
      device, {}, [device](const Sequences& s) { return SequenceTable{uploaded(s.offsets(), device)}; });
}

const Tensor& Sequences::positions_on(Device device) const {
  return derived<Tensor>(device, {},
                         [device](const Sequences& s) { return uploaded(s.positions(), device); });
}

namespace {
struct TokenRows {
  Tensor offsets;
  void refill(const TokenRows& made) const { offsets.copy_from(made.offsets); }
};
struct RowNumbers {
  Tensor numbers;
  void refill(const RowNumbers& made) const { numbers.copy_from(made.numbers); }
};

std::vector<std::int64_t> numbers_of_rows(const Sequences& s) {
  std::vector<std::int64_t> numbers = s.positions();
  for (std::int64_t i = 0; i < s.count(); ++i)
    for (std::int64_t row = s.begin(i); row < s.end(i); ++row)
      numbers[static_cast<std::size_t>(row)] += s.numbers()[static_cast<std::size_t>(i)];
  return numbers;
}
}  // namespace

Tensor Sequences::row_numbers_on(Device device) const {
  if (numbers().empty()) return {};
  return derived<RowNumbers>(
             device, {},
             [device](const Sequences& s) { return RowNumbers{uploaded(numbers_of_rows(s), device)}; })
      .numbers;
}

Tensor Sequences::token_rows_on(Device device) const {
  if (!has_spare_rows()) return {};
  return derived<TokenRows>(device, {},
                            [device](const Sequences& s) {
                              return TokenRows{uploaded({0, s.token_count()}, device)};
                            })
      .offsets;
}

const void* Sequences::find_or_make(std::type_index type, Device device, const std::vector<std::int64_t>& key,
                                    Maker maker) const {
  Tables& tables = data_->tables;
  const std::lock_guard lock(tables.mutex);
  for (const Tables::Entry& e : tables.entries)
    if (e.type == type && e.device == device && e.key == key) return e.value.get();
  const std::shared_ptr<void> value = maker.make(*this);
  if (!maker.refill) maker.make = nullptr;
  tables.entries.push_back({type, device, key, value, std::move(maker)});
  return value.get();
}

}  // namespace nemocube
