#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/chat/chat.h"
#include "data/json/json.h"
#include "train/recipe/environment.h"
#include "train/recipe/scalar.h"
#include "train/recipe/types.h"
#include "train/recipe/variables.h"

namespace nemocube::recipe {
namespace {

/// A YAML value as PyYAML reads it, but for numbers such as 1e-8, which are numbers here.
Json json_of(const Place& at) {
  if (is_null(at)) return nullptr;
  if (at.value.kind == Value::Kind::list) {
    Json list = Json::array();
    for (const Value& item : at.value.items) list.push_back(json_of({item, at.path, at.where}));
    return list;
  }
  if (at.value.kind == Value::Kind::map) {
    Json object = Json::object();
    for (const auto& [name, value] : at.value.entries) object[name] = json_of({value, at.path, at.where});
    return object;
  }
  const Scalar scalar = resolve_scalar(at.value, at.where).value();
  if (!scalar.plain) return scalar.text;
  if (const auto flag = parse_flag(scalar.text)) return *flag;
  const bool whole = scalar.text.find_first_of(".eE") == std::string::npos;
  if (const auto integer = whole ? parse_integer(scalar.text) : std::nullopt) return *integer;
  if (const auto real = parse_real(scalar.text)) return *real;
  return scalar.text;
}

std::string yaml_of(const Json& json) {
  if (json.is_object()) {
    std::vector<std::string> entries;
    for (const auto& [name, value] : json.items())
      entries.push_back(cat(key_in_quotes(name), ": ", yaml_of(value)));
    return cat("{", joined(entries), "}");
  }
  if (json.is_array()) {
    std::vector<std::string> items;
    for (const Json& item : json) items.push_back(yaml_of(item));
    return cat("[", joined(items), "]");
  }
  if (json.is_string()) return text_of(json.get<std::string>());
  if (json.is_boolean()) return text_of(json.get<bool>());
  if (json.is_number_float()) return text_of(json.get<double>());
  if (json.is_number()) return text_of(json.get<std::int64_t>());
  return "null";
}

}  // namespace

void read(const Place& at, TemplateVariables& out, Range range) {
  out.json.clear();
  if (is_null(at)) return;
  if (at.value.kind != Value::Kind::map) wrong(at, show(out, range).wish);
  for (const auto& [name, value] : at.value.entries) {
    require(is_variable_name(name), at.where, ".", name,
            ": want the name of a variable, of letters, digits and _");
    require(std::ranges::find(chat_members, std::string_view(name)) == chat_members.end(), at.where, ".",
            name, ": comes from the conversation; want another name");
  }
  if (!at.value.entries.empty()) out.json = dump_json(json_of(at), -1);
}

Shown show(const TemplateVariables& value, Range) {
  return {"a section of variables, each a value of any type",
          value.json.empty() ? "" : yaml_of(parse_json(value.json, "chat_template_kwargs"))};
}

}  // namespace nemocube::recipe
