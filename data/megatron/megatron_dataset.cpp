#include "data/megatron/megatron_dataset.h"

#include <cmath>
#include <filesystem>
#include <numeric>

#include "data/megatron/weights.h"

namespace nemocube {

GptDataset::GptDataset(const std::string& prefix, const MegatronOptions& options)
    : tokens_(prefix), options_(options) {
  GptRange range;
  try {
    std::tie(range.first, range.last) = split_range(options.shares, options.split, tokens_.sequences());
  } catch (const Error& error) {
    fail(prefix, ": ", error.what());
  }
  range.seq_length = options.seq_length;
  range.samples = options.samples;
  range.seed = options.seed;
  index_ = gpt_index(tokens_, range);
}

std::int64_t GptDataset::size() const {
  const std::int64_t all = std::ssize(index_.shuffle);
  return std::min(options_.samples.value_or(all), all);
}

Sample GptDataset::sample(std::int64_t i) const {
  check_index(i);
  const auto number = static_cast<std::size_t>(index_.shuffle[static_cast<std::size_t>(i)]);
  GptIndex::SampleStart from = index_.samples[number];
  const GptIndex::SampleStart to = index_.samples[number + 1];
  std::vector<std::int64_t> ids;
  for (; from.document <= to.document; from = {from.document + 1, 0}) {
    const std::int64_t sequence = index_.documents[static_cast<std::size_t>(from.document)];
    const std::int64_t end = from.document == to.document ? to.offset + 1 : tokens_.length(sequence);
    tokens_.read(sequence, from.offset, end - from.offset, options_.id_limit, ids);
  }
  Sample sample;
  sample.id = cat(std::filesystem::path(tokens_.prefix()).filename().string(), " ", number);
  sample.lengths = {options_.seq_length};
  sample.labels.assign(ids.begin() + 1, ids.end());
  ids.pop_back();
  sample.input_ids = std::move(ids);
  return sample;
}

BlendedDataset::BlendedDataset(const Blend& blend, const MegatronOptions& options) {
  if (blend.weights.empty())
    use_sizes(blend, options);
  else
    use_weights(blend, options);
}

void BlendedDataset::use_weights(const Blend& blend, MegatronOptions options) {
  require(options.samples.has_value(),
          "paths with weights want a number of samples: max_steps, or num_train_samples and the like");
  std::int64_t size = 0;
  std::vector<std::int64_t> wanted;
  for (const double weight : blend.weights) {
    wanted.push_back(static_cast<std::int64_t>(std::ceil(static_cast<double>(*options.samples) * weight)));
    size += wanted.back();
  }
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    options.samples = static_cast<std::int64_t>(std::ceil(static_cast<double>(wanted[k]) * 1.005));
    parts_.push_back(std::make_unique<GptDataset>(blend.prefixes[k], options));
  }
  // Upstream normalises a second time here, which can change the last bit.
  places_ = blend_samples(normalised(blend.weights, "paths"), size);
  for (const BlendSample& place : places_) {
    const std::int64_t there = parts_[static_cast<std::size_t>(place.part)]->size();
    require(place.sample < there, blend.prefixes[static_cast<std::size_t>(place.part)],
            ": the blend takes more samples than the ", there,
            " of this file; want another number of samples");
  }
}

void BlendedDataset::use_sizes(const Blend& blend, MegatronOptions options) {
  const auto wanted = std::exchange(options.samples, std::nullopt);
  std::vector<std::int64_t> sizes;
  for (const std::string& prefix : blend.prefixes) {
    parts_.push_back(std::make_unique<GptDataset>(prefix, options));
    sizes.push_back(parts_.back()->size());
  }
  const std::int64_t all = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  std::vector<double> weights;
  for (const std::int64_t size : sizes)
    weights.push_back(static_cast<double>(size) / static_cast<double>(all));
  places_ = blend_samples(weights, std::min(wanted.value_or(all), all), sizes);
}

Sample BlendedDataset::sample(std::int64_t i) const {
  check_index(i);
  const BlendSample place = places_[static_cast<std::size_t>(i)];
  return parts_[static_cast<std::size_t>(place.part)]->sample(place.sample);
}

std::int64_t BlendedDataset::content_length(std::int64_t i) const {
  check_index(i);
  return parts_[static_cast<std::size_t>(places_[static_cast<std::size_t>(i)].part)]->content_length(0);
}

std::vector<DataFile> BlendedDataset::files() const {
  std::vector<DataFile> all;
  for (const auto& part : parts_)
    for (DataFile& file : part->files()) all.push_back(std::move(file));
  return all;
}

std::shared_ptr<const Dataset> make_megatron_dataset(const MegatronOptions& options) {
  const std::int64_t wanted = options.samples.value_or(1);
  require(wanted >= 1 && wanted <= MegatronOptions::max_samples, "number of samples: want 1 to ",
          MegatronOptions::max_samples, ", got ", wanted);
  NamedBlend named = read_blend(options.paths, options.split);
  MegatronOptions of_files = options;
  if (named.whole) {  // the list is that of the split alone
    of_files.split = MegatronSplit::train;
    of_files.shares = "1";
  }
  if (named.blend.prefixes.size() == 1)
    return std::make_shared<GptDataset>(named.blend.prefixes[0], of_files);
  return std::make_shared<BlendedDataset>(named.blend, of_files);
}

}  // namespace nemocube
