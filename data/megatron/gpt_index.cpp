#include "data/megatron/gpt_index.h"

#include <bit>
#include <numeric>
#include <random>
#include <utility>

#include "core/error.h"
#include "data/megatron/index_memory.h"

namespace nemocube {

namespace {

/// numpy.random.RandomState(seed).shuffle().
class NumpyShuffle {
 public:
  explicit NumpyShuffle(std::uint32_t seed) : generator_(seed) {}

  template <class T>
  void operator()(std::vector<T>& values, std::size_t begin, std::size_t end) {
    for (std::size_t i = end - begin; i-- > 1;) std::swap(values[begin + i], values[begin + below(i)]);
  }

 private:
  /// In [0, most], by rejection.
  std::size_t below(std::size_t most) {
    expect(most <= std::numeric_limits<std::uint32_t>::max(), "a shuffle of ", most + 1, " values");
    const auto mask = static_cast<std::uint32_t>(std::bit_ceil(static_cast<std::uint64_t>(most) + 1) - 1);
    std::uint32_t value = 0;
    do value = static_cast<std::uint32_t>(generator_()) & mask;
    while (value > most);
    return value;
  }
  std::mt19937 generator_;
};

/// How often the sequences are gone through, and where the last time is set apart.
struct Epochs {
  std::int64_t count = 1;
  std::optional<std::int64_t> samples_before_last;  ///< where the last one is apart
};

Epochs epochs_of(std::int64_t tokens, const GptRange& range) {
  Epochs epochs;
  if (!range.samples) return epochs;
  constexpr std::int64_t most_tokens = std::int64_t{1} << 62;
  require(*range.samples <= most_tokens / range.seq_length, *range.samples, " samples of ", range.seq_length,
          " tokens: want at most ", most_tokens / range.seq_length, " samples");
  epochs.count = std::max<std::int64_t>(1, (*range.samples * range.seq_length + 1 + tokens - 1) / tokens);
  if (epochs.count == 1) return epochs;
  const std::int64_t before = ((epochs.count - 1) * tokens - 1) / range.seq_length;
  const std::int64_t in_one = (tokens - 1) / range.seq_length;
  if (*range.samples - before < static_cast<std::int64_t>(0.8 * static_cast<double>(in_one)))
    epochs.samples_before_last = before;
  return epochs;
}

/// Before memory is taken for so many samples and documents.
void check_size(const std::string& prefix, std::int64_t samples, double documents) {
  require_index_memory(
      prefix, static_cast<double>(samples + 1) * (sizeof(GptIndex::SampleStart) + sizeof(std::int64_t)) +
                  documents * sizeof(std::int32_t));
  constexpr double most = 4294967296.0;  // that 32 bits shuffle
  require(static_cast<double>(samples) <= most && documents <= most, prefix, ": ", samples, " samples of ",
          documents, " sequences: want at most ", static_cast<std::int64_t>(most), " of each");
}

std::vector<std::int32_t> document_index(const GptRange& range, const Epochs& epochs, NumpyShuffle& shuffle) {
  const std::int64_t in_one = range.last - range.first;
  std::vector<std::int32_t> documents(static_cast<std::size_t>(in_one * epochs.count));
  for (std::size_t i = 0; i < documents.size(); ++i)
    documents[i] = static_cast<std::int32_t>(range.first + static_cast<std::int64_t>(i) % in_one);
  const std::size_t apart =
      epochs.samples_before_last ? documents.size() - static_cast<std::size_t>(in_one) : documents.size();
  shuffle(documents, 0, apart);
  shuffle(documents, apart, documents.size());
  return documents;
}

/// The beginning of the sample behind the one at `place`: S tokens on. The token behind these must exist.
GptIndex::SampleStart next_place(GptIndex::SampleStart place, const IndexedTokens& tokens,
                                 const std::vector<std::int32_t>& documents, std::int64_t seq_length) {
  std::int64_t left = seq_length + 1;
  for (;;) {
    const std::int64_t here =
        tokens.length(documents[static_cast<std::size_t>(place.document)]) - place.offset;
    if (here >= left) return {place.document, place.offset + left - 1};
    left -= here;
    place = {place.document + 1, 0};
  }
}

}  // namespace

GptIndex gpt_index(const IndexedTokens& tokens, const GptRange& range) {
  std::int64_t in_one = 0;
  for (std::int64_t i = range.first; i < range.last; ++i) in_one += tokens.length(i);
  require(in_one > range.seq_length, tokens.prefix(), ": ", in_one, " tokens in sequences ", range.first,
          " to ", range.last, " give no sample of ", range.seq_length, " + 1 tokens");
  const Epochs epochs = epochs_of(in_one, range);
  const std::int64_t samples = (epochs.count * in_one - 1) / range.seq_length;
  check_size(tokens.prefix(), samples,
             static_cast<double>(range.last - range.first) * static_cast<double>(epochs.count));
  NumpyShuffle shuffle(range.seed);
  GptIndex index;
  index.documents = document_index(range, epochs, shuffle);
  index.samples.reserve(static_cast<std::size_t>(samples) + 1);
  index.samples.emplace_back();
  for (std::int64_t i = 0; i < samples; ++i)
    index.samples.push_back(next_place(index.samples.back(), tokens, index.documents, range.seq_length));
  index.shuffle.resize(static_cast<std::size_t>(samples));
  std::iota(index.shuffle.begin(), index.shuffle.end(), std::int64_t{0});
  const auto apart = static_cast<std::size_t>(epochs.samples_before_last.value_or(samples));
  shuffle(index.shuffle, 0, apart);
  shuffle(index.shuffle, apart, index.shuffle.size());
  return index;
}

}  // namespace nemocube
