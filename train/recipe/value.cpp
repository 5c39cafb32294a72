#include "train/recipe/value.h"

#include <yaml-cpp/yaml.h>

#include <fstream>

#include "core/error.h"
#include "train/recipe/scalar.h"

namespace nemocube::recipe {
namespace {

// An alias makes a copy here, so a few lines could ask for billions of values.
constexpr std::size_t max_values = 1'000'000;
constexpr int max_depth = 64;
constexpr std::uintmax_t max_file_bytes = 16u << 20;

struct Converter {
  const std::string& name;
  std::size_t count = 0;

  Value convert(const YAML::Node& node, int depth) {
    const int line = node.Mark().line + 1;
    require(depth <= max_depth, name, ":", line, ": nested deeper than ", max_depth, " levels");
    require(++count <= max_values, name, ": more than ", max_values, " values");
    Value value;
    value.line = line;
    switch (node.Type()) {
      case YAML::NodeType::Scalar:
        value.kind = Value::Kind::scalar;
        value.text = node.Scalar();
        value.quoted = node.Tag() == "!" || node.Tag() == "tag:yaml.org,2002:str";
        break;
      case YAML::NodeType::Sequence:
        value.kind = Value::Kind::list;
        for (const auto& item : node) value.items.push_back(convert(item, depth + 1));
        break;
      case YAML::NodeType::Map:
        value.kind = Value::Kind::map;
        for (const auto& entry : node) {
          require(entry.first.IsScalar(), name, ":", entry.first.Mark().line + 1,
                  ": a key must be a plain word");
          const std::string key = entry.first.Scalar();
          require(value.find(key) == nullptr, name, ":", entry.first.Mark().line + 1, ": key '", key,
                  "' occurs twice in its section");
          value.entries.emplace_back(key, convert(entry.second, depth + 1));
        }
        break;
      default:
        break;
    }
    return value;
  }
};

void forget_lines(Value& value) {
  value.line = 0;
  for (Value& item : value.items) forget_lines(item);
  for (auto& [key, entry] : value.entries) forget_lines(entry);
}

bool is_null(const Value& value) { return value.kind == Value::Kind::null; }

Value& descend(Value& at, const std::string& part, std::string_view assignment) {
  const auto refuse = [&](auto&&... why) { fail("--set ", assignment, ": ", why...); };
  if (at.kind == Value::Kind::scalar && !at.quoted && (at.text == "none" || at.text == "None")) at = Value{};
  if (is_null(at)) at.kind = Value::Kind::map;
  if (at.kind == Value::Kind::list) {
    const auto index = parse_integer(part);
    const auto size = static_cast<std::int64_t>(at.items.size());
    if (!index || *index < 0 || *index > size)
      refuse("'", part, "' is no index of a list of ", size, " (0 to ", size, ", the last one appends)");
    if (*index == size) at.items.emplace_back();
    return at.items[static_cast<std::size_t>(*index)];
  }
  if (at.kind != Value::Kind::map)
    refuse("'", part, "' is below '", at.text, "', which is a value, not a section");
  for (auto& [key, entry] : at.entries)
    if (key == part) return entry;
  return at.entries.emplace_back(part, Value{}).second;
}

}  // namespace

const Value* Value::find(std::string_view key) const {
  for (const auto& [name, value] : entries)
    if (name == key) return &value;
  return nullptr;
}

Value parse_yaml(const std::string& text, const std::string& name) {
  std::vector<YAML::Node> documents;
  try {
    documents = YAML::LoadAll(text);
  } catch (const YAML::Exception& error) {
    if (error.mark.is_null()) fail(name, ": not YAML: ", error.msg);
    fail(name, ":", error.mark.line + 1, ": not YAML: ", error.msg);
  }
  require(documents.size() <= 1, name, ": holds ", documents.size(), " YAML documents, want one");
  if (documents.empty()) return {};
  return Converter{name}.convert(documents[0], 0);
}

Value read_yaml(const std::filesystem::path& path) {
  std::error_code error;
  require(!std::filesystem::is_directory(path, error), path.string(),
          ": is a directory, want a recipe file in YAML");
  std::ifstream in(path, std::ios::binary);
  require(in.good(), path.string(), ": cannot open this recipe");
  std::string text(max_file_bytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  require(!in.bad(), path.string(), ": cannot read this recipe to its end");
  text.resize(static_cast<std::size_t>(in.gcount()));
  require(text.size() <= max_file_bytes, path.string(), ": more than ", max_file_bytes,
          " bytes are too many for a recipe");
  return parse_yaml(text, path.string());
}

void apply_override(Value& root, std::string_view assignment) {
  const auto equals = assignment.find('=');
  require(equals != std::string_view::npos && equals > 0, "--set ", assignment, ": want key.path=value");
  const std::string path(assignment.substr(0, equals));
  Value* at = &root;
  std::size_t begin = 0;
  while (begin <= path.size()) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    require(!part.empty(), "--set ", assignment, ": the key path has an empty part");
    at = &descend(*at, part, assignment);
    begin = end + 1;
  }
  const std::string text(assignment.substr(equals + 1));
  *at = parse_yaml(text, cat("--set ", assignment));
  // A shell's argument has no comments: what follows '#' belongs to the value.
  const bool cut = at->kind == Value::Kind::null || (at->kind == Value::Kind::scalar && !at->quoted);
  if (cut && at->text != text && text.find('#') != std::string::npos) {
    *at = Value{};
    at->kind = Value::Kind::scalar;
    at->text = text;
  }
  forget_lines(*at);
}

}  // namespace nemocube::recipe
