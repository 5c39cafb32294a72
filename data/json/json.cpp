#include "data/json/json.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/quote.h"
#include "core/utf8.h"
#include "data/files/regular_file.h"

namespace nemocube {
namespace {
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/// A text in which strings of the same length replace bare non-finite numbers, so that byte positions do not
/// change. `numbers` lists the strings (counted in order of appearance, keys included) that stand for a
/// number.
struct Tamed {
  std::string text;
  std::vector<std::pair<std::size_t, double>> numbers;
};

Tamed tame_non_finite(std::string_view source) {
  Tamed tamed{std::string(source), {}};
  std::size_t strings = 0;
  for (std::size_t i = 0; i < source.size();) {
    if (source[i] == '"') {
      ++strings;
      for (++i; i < source.size() && source[i] != '"'; ++i)
        if (source[i] == '\\') ++i;
      ++i;
      continue;
    }
    if (!is_word(source[i])) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < source.size() && is_word(source[end])) ++end;
    const std::string_view word = source.substr(i, end - i);
    if (word == "Infinity" || word == "NaN") {
      const bool negative = i > 0 && source[i - 1] == '-' && word == "Infinity";
      const std::size_t begin = negative ? i - 1 : i;
      tamed.text[begin] = tamed.text[end - 1] = '"';
      for (std::size_t k = begin + 1; k + 1 < end; ++k) tamed.text[k] = ' ';
      const double infinity = std::numeric_limits<double>::infinity();
      tamed.numbers.emplace_back(strings++, word == "NaN" ? std::nan("") : negative ? -infinity : infinity);
    }
    i = end;
  }
  return tamed;
}

/// Builds a document from the parser's events. The parser calls them from a loop, without recursion.
class Builder {
 public:
  Builder(const Tamed& tamed, int max_depth) : tamed_(tamed), max_depth_(max_depth) {}
  Json root;
  std::string problem;

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(Json::number_integer_t value) { return add(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return add(value); }
  bool number_float(Json::number_float_t value, const std::string&) { return add(value); }
  bool binary(Json::binary_t&) { return false; }
  bool string(std::string& value) {
    if (const double* number = stands_for_number()) return add(*number);
    return add(std::move(value));
  }
  bool key(std::string& value) {
    if (stands_for_number()) return refuse("a key must be a string");
    if (!keys_.back().insert(value).second)
      return refuse(cat("the key ", brief(Json(value)), " appears twice"));
    key_ = std::move(value);
    return true;
  }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool parse_error(std::size_t byte, const std::string&, const nlohmann::detail::exception& error) {
    std::string_view detail = error.what();
    if (const auto at = detail.find("] "); at != detail.npos) detail.remove_prefix(at + 2);
    return refuse(cat("not valid JSON at byte ", byte, " (", utf8_lossy(detail), ")"));
  }

 private:
  bool refuse(std::string why) {
    problem = std::move(why);
    return false;
  }

  const double* stands_for_number() {
    const std::size_t index = strings_++;
    if (next_ == tamed_.numbers.size() || tamed_.numbers[next_].first != index) return nullptr;
    return &tamed_.numbers[next_++].second;
  }

  Json* place(Json value) {
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.get_ref<Json::array_t&>().push_back(std::move(value));
      return &parent.get_ref<Json::array_t&>().back();
    }
    // Appends without a search for an equal key, because keys_ has already excluded one.
    Json::object_t::Container& members = parent.get_ref<Json::object_t&>();
    members.emplace_back(std::move(key_), std::move(value));
    return &members.back().second;
  }

  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  bool open(Json value) {
    if (static_cast<int>(open_.size()) >= max_depth_)
      return refuse(cat("nested deeper than ", max_depth_, " levels"));
    open_.push_back(place(std::move(value)));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  const Tamed& tamed_;
  int max_depth_;
  std::size_t strings_ = 0, next_ = 0;
  std::vector<Json*> open_;
  std::vector<std::unordered_set<std::string>> keys_;
  std::string key_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& what, const JsonLimits& limits) {
  require(static_cast<std::int64_t>(text.size()) <= limits.max_bytes, what, ": want at most ",
          limits.max_bytes, " bytes of JSON, got ", text.size());
  const Tamed tamed = limits.non_finite ? tame_non_finite(text) : Tamed{std::string(text), {}};
  Builder builder(tamed, limits.max_depth);
  const bool complete = Json::sax_parse(tamed.text, &builder);
  require(complete && builder.problem.empty(), what, ": ", builder.problem);
  return std::move(builder.root);
}

Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  return parse_json(read_text_file(path, limits.max_bytes), path.string(), limits);
}

namespace {
void new_line(std::string& out, int indent, int level) {
  if (indent < 0) return;
  out += '\n';
  out.append(static_cast<std::size_t>(indent) * static_cast<std::size_t>(level), ' ');
}

template <class Items, class Write>
void dump_items(std::string& out, const Items& items, char open, char close, int indent, int level,
                Write&& write) {
  out += open;
  bool first = true;
  for (const auto& item : items) {
    if (!first) out += ',';
    first = false;
    new_line(out, indent, level + 1);
    write(item);
  }
  if (!first) new_line(out, indent, level);
  out += close;
}

std::string dump_leaf(const Json& value) {
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
  }
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void dump_to(std::string& out, const Json& value, int indent, int level) {
  if (value.is_object()) {
    dump_items(out, value.items(), '{', '}', indent, level, [&](const auto& item) {
      out += dump_leaf(item.key());
      out += indent < 0 ? ":" : ": ";
      dump_to(out, item.value(), indent, level + 1);
    });
  } else if (value.is_array()) {
    dump_items(out, value, '[', ']', indent, level,
               [&](const Json& item) { dump_to(out, item, indent, level + 1); });
  } else {
    out += dump_leaf(value);
  }
}

}  // namespace

std::string dump_json(const Json& value, int indent) {
  std::string out;
  dump_to(out, value, indent, 0);
  return out;
}

std::string brief(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return cat("a list of ", value.size());
  if (value.is_string()) return cat('"', excerpt(value.get_ref<const std::string&>()), '"');
  return dump_leaf(value);
}

JsonView::JsonView(const Json& value, std::string file, std::string place)
    : value_(&value), file_(std::move(file)), place_(std::move(place)) {}

std::string JsonView::place_of(const std::string& step) const {
  const std::string key = excerpt(step);
  return place_.empty() || key.starts_with('[') ? place_ + key : place_ + "." + key;
}

void JsonView::refuse(const std::string& wish) const {
  const std::string place = place_.empty() ? "" : cat("'", place_, "': ");
  fail(file_, ": ", place, "want ", wish, ", got ", brief(*value_));
}

std::optional<JsonView> JsonView::find(const std::string& key) const {
  if (!value_->is_object()) refuse("an object");
  const auto member = value_->find(key);
  if (member == value_->end() || member->is_null()) return std::nullopt;
  return JsonView(*member, file_, place_of(key));
}

JsonView JsonView::member(const std::string& key) const { return {value_->at(key), file_, place_of(key)}; }

bool JsonView::has_null(const std::string& key) const {
  if (!value_->is_object()) refuse("an object");
  const auto member = value_->find(key);
  return member != value_->end() && member->is_null();
}

JsonView JsonView::at(const std::string& key) const {
  auto member = find(key);
  if (!member) fail(file_, ": '", place_of(key), "': want a value, got none");
  return std::move(*member);
}

std::vector<JsonView> JsonView::elements() const {
  if (!value_->is_array()) refuse("a list");
  std::vector<JsonView> views;
  for (const Json& item : *value_) views.emplace_back(item, file_, place_of(cat("[", views.size(), "]")));
  return views;
}

std::int64_t JsonView::integer() const {
  if (value_->is_number_unsigned() && value_->get<std::uint64_t>() > std::uint64_t{1} << 62)
    refuse("an integer below 2^62");
  if (!value_->is_number_integer()) refuse("an integer");
  return value_->get<std::int64_t>();
}

double JsonView::number() const {
  if (value_->is_number()) return value_->get<double>();
  if (value_->is_object() && value_->size() == 1 && value_->begin().key() == "__float__") {
    const Json& tag = value_->begin().value();
    if (tag == "Infinity") return std::numeric_limits<double>::infinity();
    if (tag == "-Infinity") return -std::numeric_limits<double>::infinity();
    if (tag == "NaN") return std::nan("");
  }
  refuse("a number");
}

bool JsonView::boolean() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

std::string_view JsonView::string() const {
  if (!value_->is_string()) refuse("a string");
  return value_->get_ref<const std::string&>();
}

}  // namespace nemocube
