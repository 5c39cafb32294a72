#include "train/recipe/pipeline_words.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/quote.h"
#include "train/recipe/scalar.h"
#include "train/recipe/words.h"

namespace nemocube::recipe {
namespace {

const std::vector<std::string> schedule_names = words_of(
    "gpipe 1f1b interleaved1f1b interleavedzerobubble zbv ScheduleGPipe Schedule1F1B "
    "ScheduleInterleaved1F1B ScheduleInterleavedZeroBubble ScheduleZBVZeroBubble");

}  // namespace

void check_schedule_name(std::string_view name) {
  const bool known = std::ranges::any_of(
      schedule_names, [&](const std::string& other) { return lower_case(name) == lower_case(other); });
  require(known, "no pipeline schedule ", quote(name), "; want one of ", joined(schedule_names));
}

BlockWeights parse_block_weights(std::string_view text) {
  BlockWeights weights;
  const std::array<std::pair<std::string_view, double*>, 6> members{{{"mamba", &weights.mamba},
                                                                     {"attention", &weights.attention},
                                                                     {"mlp", &weights.mlp},
                                                                     {"moe", &weights.moe},
                                                                     {"embeddings", &weights.embeddings},
                                                                     {"head", &weights.head}}};
  for (bool more = true; more;) {
    const auto comma = text.find(',');
    more = comma != std::string_view::npos;
    const std::string_view part = trimmed(text.substr(0, comma));
    if (more) text.remove_prefix(comma + 1);
    const auto equals = std::min(part.find('='), part.size());
    const auto* member = std::ranges::find(members, trimmed(part.substr(0, equals)),
                                           &std::pair<std::string_view, double*>::first);
    const auto weight = parse_real(trimmed(part.substr(std::min(equals + 1, part.size()))));
    require(member != members.end() && weight && *weight >= 0 && std::isfinite(*weight),
            "want KIND=WEIGHT, with mamba, attention, mlp, moe, embeddings or head, and a number from 0 on; "
            "found ",
            quote(part));
    *member->second = *weight;
  }
  return weights;
}

}  // namespace nemocube::recipe
