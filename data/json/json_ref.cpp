#include "data/json/json_ref.h"

#include <nlohmann/json.hpp>

namespace nemocube {

bool JsonRef::is_object() const { return value_->is_object(); }
bool JsonRef::is_array() const { return value_->is_array(); }
bool JsonRef::is_string() const { return value_->is_string(); }

JsonRef JsonRef::at(const std::string& key) const {
  auto member = find(key);
  if (!member) fail("has no '", key, "'");
  return *member;
}

std::optional<JsonRef> JsonRef::find(const std::string& key) const {
  if (!is_object()) fail("must be an object, found ", value_->type_name());
  const auto member = value_->find(key);
  if (member == value_->end() || member->is_null()) return std::nullopt;
  return JsonRef(*member, *file_, where_.empty() ? key : where_ + "." + key);
}

std::vector<JsonRef> JsonRef::elements() const {
  if (!is_array()) fail("must be a list, found ", value_->type_name());
  std::vector<JsonRef> out;
  out.reserve(value_->size());
  for (const auto& element : *value_) out.push_back(inside(element, cat("[", out.size(), "]")));
  return out;
}

std::string_view JsonRef::string() const {
  if (!is_string()) fail("must be a string, found ", value_->type_name());
  return value_->get_ref<const std::string&>();
}

bool JsonRef::boolean() const {
  if (!value_->is_boolean()) fail("must be true or false, found ", value_->type_name());
  return value_->get<bool>();
}

std::int64_t JsonRef::integer() const {
  if (value_->is_number_unsigned() && value_->get<std::uint64_t>() > 0x7FFFFFFFFFFFFFFFu)
    fail("is too large");
  if (!value_->is_number_integer()) fail("must be an integer, found ", value_->type_name());
  return value_->get<std::int64_t>();
}

}  // namespace nemocube
