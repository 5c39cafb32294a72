#include "data/safetensors/shard_json.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace nemocube {
namespace {

Json to_json(const Range& range) { return {range.begin, range.end}; }

Range range_from_json(const JsonView& json) {
  const auto ends = json.elements();
  if (ends.size() != 2) json.refuse("the first entry and the one behind the last");
  return {ends[0].integer(), ends[1].integer()};
}

}  // namespace

Json to_json(const Shard& shard) {
  const auto dims = shard.global_shape().dims();
  Json json{{"shape", std::vector<std::int64_t>(dims.begin(), dims.end())}};
  if (shard.shape() != shard.global_shape()) {
    Json& ranges = json["ranges"] = Json::array();
    for (const auto& of_dim : shard.ranges()) {
      Json& list = ranges.emplace_back(Json::array());
      for (const Range& range : of_dim) list.push_back(to_json(range));
    }
  }
  if (const auto& flat = shard.flat_range(); flat && !shard.whole()) json["flat"] = to_json(*flat);
  return json;
}

Shard shard_from_json(const JsonView& json) {
  const JsonView shape = json.at("shape");
  std::vector<std::int64_t> dims;
  for (const JsonView& size : shape.elements()) {
    dims.push_back(size.integer());
    if (dims.back() < 0) size.refuse("a number of entries");
  }
  if (dims.size() > Shape::max_dims) shape.refuse(cat("at most ", Shape::max_dims, " dimensions"));
  Shard shard(Shape{std::span<const std::int64_t>(dims)});
  try {
    if (const auto ranges = json.find("ranges")) {
      const auto of_dims = ranges->elements();
      if (of_dims.size() != dims.size()) ranges->refuse("a list for each dimension");
      for (std::size_t d = 0; d < of_dims.size(); ++d) {
        std::vector<Range> kept;
        for (const JsonView& range : of_dims[d].elements()) kept.push_back(range_from_json(range));
        if (kept != std::vector{Range{0, dims[d]}}) shard = shard.cut(static_cast<int>(d), kept);
      }
    }
    if (const auto flat = json.find("flat")) shard = shard.flat(range_from_json(*flat));
  } catch (const std::logic_error& e) {
    json.refuse(cat("a part of a tensor (", e.what(), ")"));
  }
  return shard;
}

}  // namespace nemocube
