#include "data/hf/rope_keys.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/log.h"
#include "data/hf/hf_config_refused.h"

namespace nemocube {
namespace {

using enum RopeType;

struct TypeName {
  RopeType type;
  std::string_view name;
};
constexpr std::array type_names{TypeName{standard, "default"},
                                TypeName{linear, "linear"},
                                TypeName{dynamic, "dynamic"},
                                TypeName{llama3, "llama3"},
                                TypeName{yarn, "yarn"},
                                TypeName{longrope, "longrope"},
                                TypeName{proportional, "proportional"}};

/// A key of the object, and the types that use its value.
struct RopeKey {
  std::string_view name;
  std::initializer_list<RopeType> types;
};
const std::array keys{
    RopeKey{"factor", {linear, dynamic, llama3, yarn, longrope, proportional}},
    RopeKey{"original_max_position_embeddings", {llama3, yarn, longrope}},
    RopeKey{"low_freq_factor", {llama3}},
    RopeKey{"high_freq_factor", {llama3}},
    RopeKey{"beta_fast", {yarn}},
    RopeKey{"beta_slow", {yarn}},
    RopeKey{"truncate", {yarn}},
    RopeKey{"mscale", {yarn}},
    RopeKey{"mscale_all_dim", {yarn}},
    RopeKey{"attention_factor", {yarn, longrope}},
    RopeKey{"short_factor", {longrope}},
    RopeKey{"long_factor", {longrope}},
};
/// Keys that say the same of every type, or nothing.
constexpr std::array<std::string_view, 5> other_keys{"rope_type", "type", "rope_theta",
                                                     "max_position_embeddings", "partial_rotary_factor"};

RopeType read_type(const JsonView& object) {
  auto given = object.find("rope_type");
  if (!given) given = object.find("type");
  if (!given) return standard;
  const auto found = std::ranges::find(type_names, given->string(), &TypeName::name);
  if (found == type_names.end())
    given->refuse("default, linear, dynamic, llama3, yarn, longrope or proportional");
  return found->type;
}

using Names = std::span<const std::string_view>;

void check_keys(const JsonView& object, RopeType type, Names also) {
  for (const auto& [name, value] : object.value().items()) {
    if (std::ranges::find(other_keys, name) != other_keys.end()) continue;
    if (std::ranges::find(also, name) != also.end()) continue;
    const auto known = std::ranges::find(keys, name, &RopeKey::name);
    if (known == keys.end())
      fail(object.file(), ": '", object.place(), '.', name,
           "': this key of a rotary embedding is not known here");
    if (!value.is_null() && std::ranges::find(known->types, type) == known->types.end())
      log_warning(object.file(), ": '", object.place(), '.', name, "' has no effect where rope_type is ",
                  std::ranges::find(type_names, type, &TypeName::type)->name);
  }
}

constexpr const char* partial_key = "partial_rotary_factor";

/// In families without such a factor, which proportional has in every family.
void check_partial(const JsonView& at, RopeType type) {
  if (type == proportional) return;
  const auto given = at.find(partial_key);
  if (!given || given->number() == 1) return;
  if (type != standard) given->refuse("1");
  log_warning(at.file(), ": 'partial_rotary_factor' is ", given->number(),
              " and has no effect in models of this type");
}

void read_number(const JsonView& object, const char* key, double& to) {
  if (const auto given = object.find(key)) to = given->number();
}

std::vector<double> read_factors(const JsonView& object, const char* key) {
  std::vector<double> factors;
  for (const JsonView& factor : object.at(key).elements()) factors.push_back(factor.number());
  return factors;
}

void read_factor(const JsonView& object, RopeConfig& rope) {
  const double stretched = static_cast<double>(rope.max_position_embeddings) /
                           static_cast<double>(rope.original_max_position_embeddings);
  if (rope.type == longrope || (rope.type == yarn && object.has_null("factor"))) {
    rope.factor = stretched;
    read_number(object, "factor", rope.factor);
  } else {
    rope.factor = object.at("factor").number();
  }
}

/// `object`: rope_parameters, or rope_scaling.
RopeConfig read_object(const JsonView& object, const JsonView& config, double theta, std::int64_t positions,
                       Names also, std::optional<double> partial) {
  if (!object.value().is_object()) object.refuse("an object");
  RopeConfig rope{.type = read_type(object), .rope_theta = theta};
  check_keys(object, rope.type, also);
  if (partial) {
    rope.partial_rotary_factor = *partial;
    read_number(object, partial_key, rope.partial_rotary_factor);
  } else if (rope.type == proportional) {
    for (const JsonView& at : {config, object}) read_number(at, partial_key, rope.partial_rotary_factor);
  } else {
    check_partial(object, rope.type);
  }
  read_number(object, "rope_theta", rope.rope_theta);
  if (rope.type == standard) return rope;
  if (rope.type == dynamic) rope.max_position_embeddings = positions;
  if (rope.type == llama3 || rope.type == yarn || rope.type == longrope) {
    rope.original_max_position_embeddings = rope.max_position_embeddings = positions;
    for (const JsonView& at : {object, config})
      if (const auto given = at.find("original_max_position_embeddings"))
        rope.original_max_position_embeddings = given->integer();
    if (rope.original_max_position_embeddings < 1)
      fail(config.file(), ": 'original_max_position_embeddings': want at least 1, got ",
           rope.original_max_position_embeddings);
  }
  if (rope.type == proportional) {
    read_number(object, "factor", rope.factor);
    return rope;
  }
  read_factor(object, rope);
  if (rope.type != dynamic) rope.max_position_embeddings = 0;
  if (rope.type == llama3) {
    rope.low_freq_factor = object.at("low_freq_factor").number();
    rope.high_freq_factor = object.at("high_freq_factor").number();
  }
  if (rope.type == yarn) {
    for (const auto& [key, value] : {std::pair{"beta_fast", &rope.beta_fast}, {"beta_slow", &rope.beta_slow}})
      if (const auto given = object.find(key); given && given->number() != 0) *value = given->number();
    if (const auto given = object.find("truncate")) rope.truncate = given->boolean();
    read_number(object, "mscale", rope.mscale);
    read_number(object, "mscale_all_dim", rope.mscale_all_dim);
  }
  if (rope.type == yarn || rope.type == longrope)
    if (const auto given = object.find("attention_factor")) rope.attention_factor = given->number();
  if (rope.type == longrope) {
    rope.short_factor = read_factors(object, "short_factor");
    rope.long_factor = read_factors(object, "long_factor");
  }
  return rope;
}

}  // namespace

RopeConfig read_rope(const JsonView& config, double theta, std::int64_t positions, Names also,
                     std::optional<double> partial) {
  read_number(config, "rope_theta", theta);
  if (partial) read_number(config, partial_key, *partial);
  const auto parameters = find_filled(config, "rope_parameters"),
             scaling = find_filled(config, "rope_scaling");
  if (!parameters && !scaling) {
    if (!partial) check_partial(config, standard);
    return {.type = standard, .rope_theta = theta, .partial_rotary_factor = partial.value_or(1)};
  }
  const RopeConfig rope =
      read_object(parameters ? *parameters : *scaling, config, theta, positions, also, partial);
  if (parameters && scaling) {
    RopeConfig other = read_object(*scaling, config, theta, positions, also, partial);
    if (!config.has("rope_theta") && !scaling->has("rope_theta")) other.rope_theta = rope.rope_theta;
    require(rope == other, config.file(),
            ": 'rope_parameters' and 'rope_scaling' mean the same and differ; want one of them");
  }
  if (!partial && !(parameters ? *parameters : *scaling).has(partial_key)) check_partial(config, rope.type);
  return rope;
}

RopeConfig read_rope_object(const JsonView& object, const JsonView& config, double theta,
                            std::int64_t positions) {
  return read_object(object, config, theta, positions, {}, {});
}

namespace {
/// All keys but rope_theta.
Json object_of(const RopeConfig& rope) {
  Json object = Json::object();
  object["rope_type"] = std::ranges::find(type_names, rope.type, &TypeName::type)->name;
  if (rope.type == standard) return object;
  if (rope.type == proportional) {
    object[partial_key] = rope.partial_rotary_factor;
    if (rope.factor != 1) object["factor"] = rope.factor;
    return object;
  }
  object["factor"] = rope.factor;
  if (rope.original_max_position_embeddings > 0)
    object["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  if (rope.type == llama3) {
    object["low_freq_factor"] = rope.low_freq_factor;
    object["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == yarn) {
    object["beta_fast"] = rope.beta_fast;
    object["beta_slow"] = rope.beta_slow;
    object["truncate"] = rope.truncate;
    if (rope.mscale != 0) object["mscale"] = rope.mscale;
    if (rope.mscale_all_dim != 0) object["mscale_all_dim"] = rope.mscale_all_dim;
  }
  if (rope.attention_factor) object["attention_factor"] = *rope.attention_factor;
  if (rope.type == longrope) {
    object["short_factor"] = rope.short_factor;
    object["long_factor"] = rope.long_factor;
  }
  return object;
}
}  // namespace

void write_rope(const RopeConfig& rope, Json& to) {
  to["rope_theta"] = rope.rope_theta;
  to["rope_scaling"] = rope.type == standard ? Json(nullptr) : object_of(rope);
  if (rope.partial_rotary_factor != 1 && rope.type != proportional)
    to[partial_key] = rope.partial_rotary_factor;
}

Json rope_object(const RopeConfig& rope) {
  Json object = object_of(rope);
  object["rope_theta"] = rope.rope_theta;
  return object;
}

void write_rope_parameters(const RopeConfig& rope, Json& to) { to["rope_parameters"] = rope_object(rope); }

}  // namespace nemocube
