#include "train/evaluate/log_probabilities.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <tuple>

#include "core/host_wait.h"
#include "ops/cross_entropy/labels.h"
#include "parallel/comm/together.h"

namespace nemocube {

TokenPlaces token_places(const Batch& batch) {
  TokenPlaces places;
  for (std::size_t r = 0; r < batch.lengths.size(); ++r) {
    const auto& documents = batch.lengths[r];
    const std::int64_t content = std::accumulate(documents.begin(), documents.end(), std::int64_t{0});
    for (std::int64_t t = 0; t < content; ++t) {
      places.rows.push_back(batch.row_numbers.at(r));
      places.positions.push_back(t);
    }
  }
  return places;
}

std::vector<LabelLogProbability> own_log_probabilities(const ParallelModel& model, const TokenBatch& batch,
                                                       const TokenPlaces& places,
                                                       const Tensor& token_losses) {
  if (!model.counts_loss()) return {};
  std::vector<std::int64_t> every(static_cast<std::size_t>(batch.labels.numel()));
  std::iota(every.begin(), every.end(), std::int64_t{0});
  const Tensor tokens = model.own_tokens(Tensor::from(every, {std::ssize(every)}), batch.sequences);
  const Labels labels(model.own_tokens(batch.labels, batch.sequences), batch.label_capacity);
  const HostWaitName name("log-probabilities");
  const Tensor losses = token_losses.to(Device::cpu);  // for the caller's file
  std::vector<LabelLogProbability> own;
  for (std::int64_t i = 0; i < labels.count(); ++i) {
    const std::int64_t row = labels.rows.data<std::int64_t>()[i];
    if (row >= labels.values.numel()) break;  // a place of the capacity that is left
    const auto token = static_cast<std::size_t>(tokens.data<std::int64_t>()[row]);
    // 0 - x: of certain tokens the logarithm is 0, not -0.
    own.push_back({places.rows.at(token), places.positions.at(token), labels.targets.data<std::int64_t>()[i],
                   0 - losses.data<double>()[i]});
  }
  return own;
}

std::vector<LabelLogProbability> all_log_probabilities(const ParallelModel& model,
                                                       std::span<const LabelLogProbability> own) {
  const std::vector<std::int64_t> counts = model.all().host_all_gather(static_cast<std::int64_t>(own.size()));
  std::vector<LabelLogProbability> all = model.all().host_all_gather_v(own, counts);
  std::ranges::sort(all, {}, [](const LabelLogProbability& p) { return std::tuple(p.row, p.position); });
  return all;
}

namespace {

void add_number(std::string& text, double value) {
  const auto rounded = static_cast<float>(value);
  if (!std::isfinite(rounded)) {
    text += "null";
    return;
  }
  std::array<char, 32> digits{};
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), rounded);
  text.append(digits.data(), end);
}

template <class Add>
void add_list(std::string& line, const char* name, std::span<const LabelLogProbability> labels, Add&& add) {
  line += cat(",\"", name, "\":[");
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (i > 0) line += ',';
    add(labels[i]);
  }
  line += ']';
}

}  // namespace

std::string log_probability_lines(const ScoredRows& rows) {
  std::string text;
  std::size_t at = 0;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const std::size_t first = at;
    while (at < rows.labels.size() && rows.labels[at].row == row) ++at;
    const auto labels = std::span(rows.labels).subspan(first, at - first);
    text += cat("{\"row\":", row);
    add_list(text, "positions", labels, [&](const auto& label) { text += cat(label.position); });
    add_list(text, "tokens", labels, [&](const auto& label) { text += cat(label.label); });
    add_list(text, "logprobs", labels, [&](const auto& label) { add_number(text, label.value); });
    text += "}\n";
  }
  expect(at == rows.labels.size(), "log-probabilities of rows outside of [", rows.begin, ", ", rows.end, ")");
  return text;
}

LogProbabilityFile::LogProbabilityFile(std::filesystem::path path, Communicator& group) : group_(group) {
  on_rank_0(&group_, [&] { file_.emplace(std::move(path)); });
}

void LogProbabilityFile::write(const ScoredRows& rows) {
  on_rank_0(&group_, [&] { file_->write(log_probability_lines(rows)); });
}

void LogProbabilityFile::finish() {
  on_rank_0(&group_, [&] { file_->commit(); });
}

}  // namespace nemocube
