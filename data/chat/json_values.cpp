#include "data/chat/json_values.h"

#include <nlohmann/json.hpp>

namespace nemocube::jinja {

namespace {

Value convert(const Json& json, Budget& budget) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return Value(json.get<std::int64_t>());
    case Json::value_t::number_unsigned:
      return Value(static_cast<Integer>(json.get<std::uint64_t>()));
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return Value(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      std::vector<Value> values;
      values.reserve(json.size());
      for (const Json& item : json) values.push_back(convert(item, budget));
      return make_list(std::move(values), budget);
    }
    case Json::value_t::object: {
      Mapping mapping;
      for (const auto& [key, item] : json.items()) mapping.set(Value(key), convert(item, budget), budget);
      return make_mapping(std::move(mapping));
    }
    default:
      return {};
  }
}

}  // namespace

Value value_of_json(const Json& json, const std::string& what, Budget& budget) {
  try {
    return convert(json, budget);
  } catch (const Failure& failure) {
    nemocube::fail(what, ": ", failure.what());
  }
}

}  // namespace nemocube::jinja
