#include "data/hf/config_keys.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

namespace nemocube {
namespace {

constexpr double unlimited_from = 1e30;

/// An integer, or a list that says the same integer for every block.
void read_value(const JsonView& value, std::int64_t& to) {
  if (!value.value().is_array()) {
    to = value.integer();
    return;
  }
  const std::vector<JsonView> list = value.elements();
  if (list.empty()) value.refuse("an integer");
  to = list[0].integer();
  for (const JsonView& item : list)
    if (item.integer() != to)
      item.refuse(cat(to, " as for the first block, since only per_layer_config says how blocks differ"));
}

/// Notes whether a key of some name is visited.
class FindKey final : public ConfigKeys {
 public:
  explicit FindKey(std::string_view name) : name_(name) {}
  void key(Names names, std::int64_t&) override { look(names, false); }
  void key(Names names, double&) override { look(names, false); }
  void key(Names names, bool&) override { look(names, false); }
  void nullable_key(Names names, std::int64_t&) override { look(names, true); }
  void limits(Names names, double&, double&) override { look(names, false); }
  bool found = false, nullable = false;

 private:
  void look(Names names, bool may_be_null) {
    if (std::ranges::none_of(names, [&](const char* one) { return one == name_; })) return;
    found = true;
    nullable = nullable || may_be_null;
  }
  std::string_view name_;
};

FindKey find_block_key(std::string_view name) {
  FindKey find(name);
  BlockConfig sizes;
  sizes.visit(find);
  return find;
}

/// All sizes of blocks; the limits come last, also where there is no clamp.
Json block_sizes(BlockConfig config) {
  Json sizes = Json::object();
  WriteKeys keys(sizes, true);
  config.visit(keys);
  keys.finish();
  return sizes;
}

}  // namespace

std::optional<JsonView> find_any(const JsonView& object, std::initializer_list<const char*> names) {
  std::optional<JsonView> found;
  const char* found_name = nullptr;
  for (const char* name : names) {
    const std::optional<JsonView> value = object.find(name);
    if (!value) continue;
    if (found && found->value() != value->value())
      fail(object.file(), ": '", found_name, "' and '", name,
           "' mean the same and differ: ", brief(found->value()), " and ", brief(value->value()));
    if (!found) found_name = name;
    found = value;
  }
  return found;
}

void ReadKeys::key(Names names, std::int64_t& value) {
  if (const auto given = find_any(object_, names)) read_value(*given, value);
}
void ReadKeys::key(Names names, double& value) {
  if (const auto given = find_any(object_, names)) value = given->number();
}
void ReadKeys::key(Names names, bool& value) {
  if (const auto given = find_any(object_, names)) value = given->boolean();
}
void ReadKeys::nullable_key(Names names, std::int64_t& value) {
  if (std::ranges::any_of(names, [&](const char* name) { return object_.has_null(name); })) value = 0;
  key(names, value);
}
void ReadKeys::limits(Names names, double& low, double& high) {
  const auto given = find_any(object_, names);
  if (!given) return;
  const std::vector<JsonView> ends = given->elements();
  if (ends.size() != 2) given->refuse("a list of two numbers");
  low = ends[0].number();
  high = ends[1].number();
  // Writers without a token for infinity write a number above any time step.
  if (high >= unlimited_from) high = std::numeric_limits<double>::infinity();
}

void WriteKeys::key(Names names, std::int64_t& value) { to_[*names.begin()] = value; }
void WriteKeys::key(Names names, double& value) { to_[*names.begin()] = value; }
void WriteKeys::key(Names names, bool& value) { to_[*names.begin()] = value; }
void WriteKeys::nullable_key(Names names, std::int64_t& value) {
  to_[*names.begin()] = value == 0 ? Json(nullptr) : Json(value);
}
void WriteKeys::limits(Names names, double& low, double& high) {
  if (always_limits_ || low != 0 || !std::isinf(high))
    limits_[*names.begin()] = {low, std::min(high, unlimited_from)};  // strict parsers reject Infinity
}
void WriteKeys::finish() {
  for (const auto& [key, value] : limits_.items()) to_[key] = value;
}

bool is_block_key(std::string_view name) { return find_block_key(name).found; }
bool is_nullable_block_key(std::string_view name) { return find_block_key(name).nullable; }

Json differing_block_keys(const BlockConfig& common, const BlockConfig& own) {
  const Json of_all = block_sizes(common), of_own = block_sizes(own);
  Json differing = Json::object();
  for (const auto& [key, value] : of_own.items())
    if (of_all.at(key) != value) differing[key] = value;
  return differing;
}

}  // namespace nemocube
