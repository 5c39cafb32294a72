#include "data/tokenizer/declared_tokens.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "data/json/json.h"

namespace nemocube::tok {

namespace {

constexpr std::array<std::string_view, 7> standard_names = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
constexpr const char* extra_key = "extra_special_tokens";
constexpr const char* additional_key = "additional_special_tokens";

bool is_standard(std::string_view name) {
  return std::ranges::find(standard_names, name) != standard_names.end();
}

bool is_saved_token(const Json& value) {
  return value.is_object() && value.contains("__type") && value["__type"] == "AddedToken";
}

/// A token that a key names.
struct Value {
  DeclaredToken token;
  /// Whether a token of the same content in added_tokens.json is special by this one.
  bool seen_by_added_tokens = false;
};

DeclaredToken object_token(const JsonRef& object, const std::string& place) {
  DeclaredToken token;
  token.content = object.at("content").string();
  token.single_word = object.boolean_or("single_word", false);
  token.lstrip = object.boolean_or("lstrip", false);
  token.rstrip = object.boolean_or("rstrip", false);
  if (const auto normalized = object.find("normalized")) token.normalized = normalized->boolean();
  token.special = object.boolean_or("special", false);
  token.place = place;
  return token;
}

DeclaredToken plain_token(std::string_view content, std::string place) {
  DeclaredToken token;
  token.content = content;
  token.special = true;
  token.place = std::move(place);
  return token;
}

/// A file, with what messages and places call it.
struct File {
  std::string path;
  Json document;
  bool special_map = false;  ///< special_tokens_map.json, whose objects are special tokens

  JsonRef root() const { return JsonRef(document, path, ""); }
  std::string place(const std::string& key) const { return cat(path, ": ", key); }

  Value value(const JsonRef& given, const std::string& key) const {
    if (!given.is_object()) return {plain_token(given.string(), place(key)), true};
    Value out{object_token(given, place(key)), special_map};
    if (special_map) out.token.special = true;
    return out;
  }
};

std::optional<File> read_file(const std::filesystem::path& folder, const char* name,
                              bool special_map = false) {
  const std::filesystem::path path = folder / name;
  if (!std::filesystem::exists(path)) return std::nullopt;
  File file{path.string(), read_json_file(path), special_map};
  if (!file.document.is_object()) JsonView(file.document, file.path).refuse("an object");
  return file;
}

class Reader {
 public:
  Reader(const std::filesystem::path& folder, const std::optional<JsonRef>& tokenizer)
      : tokenizer_(tokenizer) {
    const auto config = read_file(folder, "tokenizer_config.json");
    if (config) read_config(*config);
    const auto decoder = config ? config->root().find("added_tokens_decoder") : std::nullopt;
    if (decoder) {
      read_added_tokens_decoder(*config, *decoder);
    } else {
      if (const auto map = read_file(folder, "special_tokens_map.json", true)) read_special_tokens_map(*map);
      if (const auto file = read_file(folder, "added_tokens.json")) read_added_tokens(*file);
    }
    read_tokenizer(!decoder);
  }

  DeclaredTokens run() {
    take_flags_of_added_tokens();
    DeclaredTokens out;
    std::set<std::string, std::less<>> named, present = own_;
    for (const Named& one : in_order()) {
      named.insert(one.value.token.content);
      out.named.emplace_back(one.name, one.value.token.content);
    }
    for (const auto& [id, token] : by_id_) {
      out.added.push_back(token);
      present.insert(token.content);
    }
    const auto add_missing = [&](const Value& value) {
      if (!present.contains(value.token.content)) out.added.push_back(value.token);
    };
    for (const Named& one : in_order()) add_missing(one.value);
    for (const Value& value : list_.value_or(std::vector<Value>())) add_missing(value);
    std::erase_if(out.added, [](const DeclaredToken& token) { return token.content.empty(); });
    for (DeclaredToken& token : out.added)
      if (named.contains(token.content)) token.special = true;
    return out;
  }

 private:
  struct Named {
    std::string name;
    Value value;
  };

  /// Sets `name`, which keeps its place among `list`.
  static void set(std::vector<Named>& list, const std::string& name, Value value) {
    const auto same = std::ranges::find(list, name, &Named::name);
    if (same == list.end())
      list.push_back({name, std::move(value)});
    else
      same->value = std::move(value);
  }

  static void remove(std::vector<Named>& list, const std::string& name) {
    std::erase_if(list, [&](const Named& one) { return one.name == name; });
  }

  /// The keys of one of both files that name a token.
  void read_names(const File& file) {
    const JsonRef root = file.root();
    for (const auto& [key, json] : file.document.items()) {
      if (is_standard(key)) {
        remove(standard_, key);
        pad_is_given_ |= key == "pad_token";
        if (const auto given = root.find(key)) set(standard_, key, file.value(*given, key));
      } else if (key.ends_with("_token")) {
        const JsonRef given = root.inside(json, key);
        if (json.is_string())
          set(file.special_map ? others_ : first_others_, key, file.value(given, key));
        else if (is_saved_token(json) || (file.special_map && json.is_object()))
          set(others_, key, file.value(given, key));
      }
    }
  }

  /// extra_special_tokens as an object.
  void read_extra_names(const File& file, const JsonRef& object) {
    for (const auto& [key, json] : object.value().items())
      set(first_others_, key, file.value(object.inside(json, "." + key), cat(extra_key, ".", key)));
  }

  static std::vector<Value> list_of(const File& file, const JsonRef& list, const char* key) {
    std::vector<Value> values;
    for (const JsonRef& one : list.elements()) values.push_back(file.value(one, key));
    return values;
  }

  static bool is_set(const std::optional<JsonRef>& value) { return value && !value->value().empty(); }

  void read_config(const File& file) {
    read_names(file);
    const JsonRef root = file.root();
    const char* key = extra_key;
    if (!is_set(root.find(extra_key)) && file.document.contains(additional_key)) key = additional_key;
    if (!file.document.contains(key)) return;
    const auto given = root.find(key);
    if (given && given->is_object()) {
      read_extra_names(file, *given);
      if (key == extra_key) read_late_list(file);
    } else {
      list_ = given ? list_of(file, *given, key) : std::vector<Value>();
    }
  }

  /// additional_special_tokens, which count where nothing else gives a list.
  void read_late_list(const File& file) {
    if (!file.document.contains(additional_key)) return;
    const auto given = file.root().find(additional_key);
    late_list_ = given ? list_of(file, *given, additional_key) : std::vector<Value>();
  }

  void read_special_tokens_map(const File& file) {
    read_names(file);
    const JsonRef root = file.root();
    if (file.document.contains(extra_key)) {
      const auto given = root.find(extra_key);
      if (given && given->is_array()) {
        const std::vector<Value> more = list_of(file, *given, extra_key);
        if (!list_) list_.emplace();
        list_->insert(list_->end(), more.begin(), more.end());
      } else if (given) {
        if (!given->is_object()) given->elements();  // an Error
        list_.reset();
        read_extra_names(file, *given);
      } else {
        list_.emplace();
      }
    }
    read_late_list(file);
  }

  void read_added_tokens_decoder(const File& file, const JsonRef& object) {
    if (!object.is_object()) object.fail("must be an object, found ", object.value().type_name());
    for (const auto& [key, json] : object.value().items()) {
      const JsonRef entry = object.inside(json, "." + key);
      std::int64_t id = 0;
      const auto [end, wrong] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (wrong != std::errc() || end != key.data() + key.size() || id < 0) entry.fail("is no token id");
      DeclaredToken token = object_token(entry, file.place("added_tokens_decoder"));
      token.id = id;
      by_content_[token.content] = token;
      by_id_[id] = std::move(token);
    }
  }

  void read_added_tokens(const File& file) {
    std::set<std::string, std::less<>> special;
    const auto note = [&](const Value& value) {
      if (value.seen_by_added_tokens) special.insert(value.token.content);
    };
    for (const Named& one : standard_) note(one.value);
    for (const Value& value : list_.value_or(std::vector<Value>())) note(value);
    for (const auto& [key, json] : file.document.items()) {
      DeclaredToken token;
      token.content = key;
      token.special = special.contains(key);
      token.id = file.root().inside(json, cat("\"", key, "\"")).integer();
      token.place = file.path;
      by_content_[key] = token;
      by_id_[*token.id] = std::move(token);
    }
  }

  void read_tokenizer(bool to_be_added) {
    if (!tokenizer_) return;
    if (const auto list = tokenizer_->find("added_tokens"))
      for (const JsonRef& entry : list->elements()) {
        DeclaredToken token = object_token(entry, "");
        token.id = entry.at("id").integer();
        own_.insert(token.content);
        if (!to_be_added) continue;
        by_content_[token.content] = token;
        by_id_[*token.id] = std::move(token);
      }
    const auto padding = tokenizer_->find("padding");
    const auto pad = padding ? padding->find("pad_token") : std::nullopt;
    if (pad && !pad_is_given_) late_pad_ = plain_token(pad->string(), "tokenizer.json: padding.pad_token");
  }

  /// Named tokens given as texts or objects take the flags of added tokens.
  void take_flags_of_added_tokens() {
    for (Named& one : standard_)
      if (const auto same = by_content_.find(one.value.token.content); same != by_content_.end())
        one.value.token = same->second;
    if (late_pad_) set(standard_, "pad_token", {*late_pad_, true});
    if (!list_) list_ = late_list_;
  }

  std::vector<Named> in_order() const {
    std::vector<Named> all;
    for (const std::string_view name : standard_names)
      if (const auto found = std::ranges::find(standard_, name, &Named::name); found != standard_.end())
        all.push_back(*found);
    std::vector<Named> others = others_;
    for (const Named& one : first_others_) set(others, one.name, one.value);
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }

  std::optional<JsonRef> tokenizer_;
  std::vector<Named> standard_, others_;
  std::vector<Named> first_others_;         // which win over others_
  std::optional<std::vector<Value>> list_;  // of extra_special_tokens
  std::optional<std::vector<Value>> late_list_;
  std::optional<DeclaredToken> late_pad_;
  bool pad_is_given_ = false;
  std::map<std::int64_t, DeclaredToken> by_id_;  // in the order in which they are added
  std::map<std::string, DeclaredToken, std::less<>> by_content_;
  std::set<std::string, std::less<>> own_;  // of tokenizer.json
};

}  // namespace

DeclaredTokens read_declared_tokens(const std::filesystem::path& folder,
                                    const std::optional<JsonRef>& tokenizer) {
  return Reader(folder, tokenizer).run();
}

}  // namespace nemocube::tok
