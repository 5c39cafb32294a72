#include "parallel/schedule/stages.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/quote.h"
#include "core/range.h"
#include "model/blocks/block_kinds.h"
#include "parallel/schedule/fields.h"

namespace nemocube {
namespace {

void check_stage_count(std::int64_t stages, std::int64_t blocks, const char* unit) {
  require(stages >= 1 && stages <= blocks, "pipeline: ", stages, " stages for ", counted(blocks, unit),
          "; want at least one ", unit, " for each stage, so 1 to ", blocks, " stages");
}

/// Stages that end at the given blocks.
std::vector<ModelChunk> stages_ending_at(const std::vector<std::int64_t>& ends) {
  std::vector<ModelChunk> stages;
  for (std::size_t i = 0; i < ends.size(); ++i)
    stages.push_back({i == 0 ? 0 : ends[i - 1], ends[i], i == 0, i + 1 == ends.size()});
  return stages;
}

double& weight_named(BlockWeights& weights, std::string_view name) {
  if (const auto kind = find_block_kind(name); kind && name == name_of(*kind)) return weights.of(*kind);
  if (name == "embeddings") return weights.embeddings;
  if (name == "head") return weights.head;
  std::string known;
  for (const BlockKind kind : block_kinds()) known += cat(kind, ", ");
  fail("block weights: no ", quote(name), "; there are: ", known, "embeddings, head");
}

std::size_t place_of(BlockKind kind) {
  return static_cast<std::size_t>(std::ranges::find(block_kinds(), kind) - block_kinds().begin());
}

}  // namespace

std::int64_t count_stages(ScheduleKind kind, std::int64_t pp, std::int64_t blocks,
                          std::optional<std::int64_t> layers_per_stage, std::string_view round,
                          const char* unit) {
  require(pp >= 1, "pipeline: pp is ", pp, "; want at least 1");
  require(blocks >= 1, "pipeline: the model has ", blocks, " ", unit, "s; want at least 1");
  require(round.empty() || round == "up" || round == "down", "round_virtual_stages_to_pp_multiple is ",
          quote(round), "; want up or down");
  if (!layers_per_stage) return has_one_chunk(kind) ? pp : 2 * pp;
  const std::int64_t layers = *layers_per_stage;
  require(layers >= 1, "layers_per_stage is ", layers, "; want at least 1");
  std::int64_t stages = blocks / layers + (blocks % layers > 0);
  const std::int64_t below = stages - stages % pp, above = below + pp;
  if (stages != below) {
    const std::int64_t rounded = round == "up" ? above : round == "down" ? below : 0;
    require(rounded > 0, "layers_per_stage ", layers, " makes ", stages, " stages of ", counted(blocks, unit),
            "; want a multiple of pp ", pp, ": round_virtual_stages_to_pp_multiple up makes ", above,
            below > 0 ? cat(", down ", below) : "");
    stages = rounded;
  }
  check_chunks(kind, stages / pp);
  return stages;
}

std::vector<ModelChunk> even_stages(std::int64_t blocks, std::int64_t stages, const char* unit) {
  check_stage_count(stages, blocks, unit);
  std::vector<std::int64_t> ends;
  for (std::int64_t i = 0; i < stages; ++i) ends.push_back(even_part({0, blocks}, stages, i).end);
  return stages_ending_at(ends);
}

BlockWeights::BlockWeights() {
  for (const BlockKind kind : block_kinds()) kinds.push_back(kind->pipeline_weight);
}

double& BlockWeights::of(BlockKind kind) { return kinds.at(place_of(kind)); }
double BlockWeights::of(BlockKind kind) const { return kinds.at(place_of(kind)); }

BlockWeights parse_block_weights(std::string_view text) {
  BlockWeights weights;
  std::set<std::string_view> named;
  for (const std::string_view part : fields_of(text, ',')) {
    if (part.empty()) continue;
    const auto middle = part.find_first_of("=:");
    require(middle != std::string_view::npos, "block weights: ", quote(part), "; want NAME=WEIGHT");
    const std::string_view name = trimmed(part.substr(0, middle)), value = trimmed(part.substr(middle + 1));
    double& weight = weight_named(weights, name);
    require(named.insert(name).second, "block weights: ", quote(part), " is the second weight of ", name);
    const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), weight);
    require(
        error == std::errc() && stop == value.data() + value.size() && std::isfinite(weight) && weight >= 0,
        "block weights: the weight of ", name, " is ", quote(value), "; want a number of 0 or more");
  }
  return weights;
}

std::vector<ModelChunk> weighted_stages(std::span<const BlockKind> blocks, std::int64_t stages,
                                        const BlockWeights& weights) {
  const auto count = static_cast<std::int64_t>(blocks.size());
  check_stage_count(stages, count, "block");
  const auto weight_of = [&](std::int64_t block) {
    return weights.of(blocks[static_cast<std::size_t>(block)]);
  };
  double left = weights.embeddings + weights.head;
  for (const BlockKind kind : blocks) left += weights.of(kind);

  std::vector<std::int64_t> ends;
  for (std::int64_t i = 0, begin = 0; i + 1 < stages; ++i) {
    const double target = left / static_cast<double>(stages - i);
    const std::int64_t last_end = count - (stages - 1 - i);  // leaves a block for each later stage
    double sum = (i == 0 ? weights.embeddings : 0) + weight_of(begin), best = sum;
    std::int64_t best_end = begin + 1;
    for (std::int64_t end = begin + 2; end <= last_end; ++end) {
      sum += weight_of(end - 1);
      if (std::abs(sum - target) < std::abs(best - target)) {
        best = sum;
        best_end = end;
      }
    }
    left -= best;
    ends.push_back(begin = best_end);
  }
  ends.push_back(count);
  return stages_ending_at(ends);
}

}  // namespace nemocube
