#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "core/quote.h"
#include "data/files/regular_file.h"
#include "train/recipe/value.h"

namespace nemocube::recipe {
namespace {

struct Source {
  const std::string& text;
  const std::string& name;
  int line;  ///< the line of an embedded value; -1: the text is a file with its own line numbers

  std::string place(const YAML::Mark& mark) const { return line >= 0 ? name : cat(name, ":", mark.line + 1); }
};

std::string line_at(const Source& source, const YAML::Mark& mark) {
  std::istringstream lines(source.text);
  std::string line;
  for (int i = 0; i <= mark.line; ++i) std::getline(lines, line);
  return line;
}

/// Builds the tree from the parser's events. YAML::Load would build a tree of its own first, without limits.
class Builder final : public YAML::EventHandler {
 public:
  explicit Builder(const Source& source) : source_(source) {}
  Value root;

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (started_) refuse_rest(mark);
    started_ = true;
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(mark, anchor, value_at(mark)); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    require(text.find('\0') == std::string::npos, source_.place(mark), ": text with a NUL byte");
    Value value = value_at(mark);
    value.kind = Value::Kind::scalar;
    value.text = text;
    value.quoted = tag == "!" || tag == "tag:yaml.org,2002:str";
    add(mark, anchor, std::move(value));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchored_.find(anchor);
    require(found != anchored_.end(), source_.place(mark), ": an alias inside what it stands for");
    count(mark, found->second, open_.size());
    place(mark, found->second);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, anchor, Value::Kind::list);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, anchor, Value::Kind::map);
  }
  void OnMapEnd() override { close(); }

 private:
  /// A list or section whose end has not been seen.
  struct Open {
    YAML::Mark mark;
    YAML::anchor_t anchor = 0;
    Value value;
    std::optional<std::string> key;  ///< whose value comes next
    std::unordered_set<std::string> keys;
  };

  Value value_at(const YAML::Mark& mark) const {
    Value value;
    value.line = source_.line >= 0 ? source_.line : mark.line + 1;
    return value;
  }

  [[noreturn]] void refuse_rest(const YAML::Mark& mark) const {
    const std::string line = line_at(source_, mark);
    if (line.starts_with("---")) fail(source_.place(mark), ": a second YAML document starts here, want one");
    fail(source_.place(mark), ": not YAML: text that belongs to no value, in the line ", quote(line));
  }

  void count(const YAML::Mark& mark, const Value& value, std::size_t depth) {
    require(depth <= max_depth, source_.place(mark), ": nested deeper than ", max_depth, " levels");
    ++values_;
    text_bytes_ += value.text.size();
    for (const Value& item : value.items) count(mark, item, depth + 1);
    for (const auto& [key, entry] : value.entries) {
      ++values_;
      text_bytes_ += key.size();
      count(mark, entry, depth + 1);
    }
    require(values_ <= max_values, source_.place(mark), ": more than ", max_values, " keys and values");
    require(text_bytes_ <= max_text_bytes, source_.place(mark), ": more than ", max_text_bytes,
            " bytes of text");
  }

  void add(const YAML::Mark& mark, YAML::anchor_t anchor, Value value) {
    count(mark, value, open_.size());
    keep(mark, anchor, value);
    place(mark, std::move(value));
  }

  void keep(const YAML::Mark& mark, YAML::anchor_t anchor, const Value& value) {
    if (anchor == YAML::NullAnchor) return;
    count(mark, value, 0);
    anchored_[anchor] = value;
  }

  void open(const YAML::Mark& mark, YAML::anchor_t anchor, Value::Kind kind) {
    Value value = value_at(mark);
    value.kind = kind;
    count(mark, value, open_.size());
    open_.push_back({mark, anchor, std::move(value), {}, {}});
  }

  void close() {
    Open closed = std::move(open_.back());
    open_.pop_back();
    keep(closed.mark, closed.anchor, closed.value);
    place(closed.mark, std::move(closed.value));
  }

  void place(const YAML::Mark& mark, Value value) {
    if (open_.empty()) {
      root = std::move(value);
      return;
    }
    Open& parent = open_.back();
    if (parent.value.kind == Value::Kind::list) {
      parent.value.items.push_back(std::move(value));
    } else if (parent.key) {
      parent.value.entries.emplace_back(std::move(*parent.key), std::move(value));
      parent.key.reset();
    } else {
      require(value.kind == Value::Kind::scalar, source_.place(mark), ": a key must be a plain word");
      require(value.quoted || value.text != "<<", source_.place(mark),
              ": merge keys (<<) are not supported; want the keys of the other section written out, or an "
              "alias for the whole section");
      check_key(value.text, source_.place(mark));
      require(parent.keys.insert(value.text).second, source_.place(mark), ": key '", value.text,
              "' occurs twice in its section");
      parent.key = std::move(value.text);
    }
  }

  const Source& source_;
  bool started_ = false;
  std::vector<Open> open_;
  std::unordered_map<YAML::anchor_t, Value> anchored_;
  std::size_t values_ = 0, text_bytes_ = 0;
};

Value parse(const Source& source) {
  require(source.text.size() <= max_yaml_bytes, source.name, ": want at most ", max_yaml_bytes,
          " bytes of YAML, found ", source.text.size());
  try {
    std::istringstream stream(source.text);
    YAML::Parser parser(stream);
    Builder builder(source);
    // The first document, and then nothing more: the builder refuses a second one.
    while (parser.HandleNextDocument(builder)) {
    }
    return std::move(builder.root);
  } catch (const YAML::Exception& error) {
    const std::string place = error.mark.is_null() ? source.name : source.place(error.mark);
    const std::string line = error.mark.is_null() ? "" : line_at(source, error.mark);
    if (const auto text = line.find_first_not_of(' '); text != line.npos && line[text] == '\t')
      fail(place, ": not YAML: this line is indented by a tab; YAML wants spaces");
    fail(place, ": not YAML: ", excerpt(error.msg));
  }
}

}  // namespace

Value parse_yaml(const std::string& text, const std::string& name) { return parse({text, name, -1}); }

Value parse_yaml_value(const std::string& text, const std::string& where, int line) {
  return parse({text, where, line});
}

Value read_yaml(const std::filesystem::path& path) {
  std::error_code error;
  require(!std::filesystem::is_directory(path, error), path.string(),
          ": is a directory, want a recipe file in YAML");
  if (std::filesystem::is_other(path, error)) const RegularFile refused(path);  // a FIFO, socket or device
  std::ifstream in(path, std::ios::binary);
  require(in.good(), path.string(), ": cannot open this recipe",
          errno == ENOENT ? "" : ": " + std::generic_category().message(errno));
  std::string text(max_yaml_bytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  require(!in.bad(), path.string(), ": cannot read this recipe to its end");
  text.resize(static_cast<std::size_t>(in.gcount()));
  require(text.size() <= max_yaml_bytes, path.string(), ": want a recipe of at most ", max_yaml_bytes,
          " bytes, found more");
  return parse_yaml(text, path.string());
}

}  // namespace nemocube::recipe
