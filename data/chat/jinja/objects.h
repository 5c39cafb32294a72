#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/jinja/value.h"

namespace nemocube::jinja {

/// Arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Gives values one after another, once.
class Iterator : public Object {
 public:
  /// False at the end.
  virtual bool next(Value& value) = 0;
  std::string_view type_name() const override { return "generator"; }
};

/// An iterator made of a function. Generators may read from each other in a chain, so each takes a level of
/// evaluation.
class Generator final : public Iterator {
 public:
  using Next = std::function<bool(Value&)>;
  Generator(Budget& budget, Next next) : budget_(budget), next_(std::move(next)) {}
  /// Throws Failure when more generators than the limit's levels stand in the chain.
  bool next(Value& value) override {
    const Budget::Level level(budget_);
    return next_ && next_(value);
  }
  void clear() override { next_ = nullptr; }

 private:
  Budget& budget_;
  Next next_;
};

/// Python's range().
class Range final : public Object {
 public:
  Range(Integer from, Integer by, std::size_t items) : start(from), step(by), size(items) {}
  std::string_view type_name() const override { return "range"; }
  Value at(std::size_t index) const { return start + static_cast<Integer>(index) * step; }

  const Integer start, step;
  const std::size_t size;
  Integer stop = 0;  ///< as given, for printing
};

/// keys(), values() or items() of a mapping.
class View final : public Object {
 public:
  enum class Part { keys, values, items };
  View(Value::MappingPointer of, Part which) : mapping(std::move(of)), part(which) {}
  std::string_view type_name() const override {
    return part == Part::keys ? "dict_keys" : part == Part::values ? "dict_values" : "dict_items";
  }
  void clear() override { mapping = std::make_shared<const Mapping>(); }
  Value at(std::size_t index, Budget& budget) const;

  Value::MappingPointer mapping;
  const Part part;
};

class Namespace final : public Object {
 public:
  std::string_view type_name() const override { return "namespace"; }
  void clear() override { attributes = Mapping(); }
  Mapping attributes;
};

/// `loop` inside a for.
class Loop final : public Object {
 public:
  explicit Loop(Budget& budget) : budget_(budget) {}
  std::string_view type_name() const override { return "loop"; }
  void clear() override;

  bool advance(Value& value);
  const Value* peek();  ///< the next item; null at the end
  std::size_t length();

  Value iterable;
  Iterator* iterator = nullptr;
  std::optional<std::size_t> known_length{};
  std::int64_t index0 = -1;
  std::int64_t depth0 = 0;
  Value before, current;
  std::optional<Value> after;  ///< peeked at
  std::vector<Value> changed{};
  bool has_changed = false;
  std::function<Value(const Value& iterable, std::int64_t depth)> recurse{};

 private:
  Budget& budget_;
  std::vector<Value> rest_{};  // items that were read to count them
  std::size_t rest_position_ = 0;
  bool read(Value& value);
};

/// cycler(...)
class Cycler final : public Object {
 public:
  explicit Cycler(std::vector<Value> all) : items(std::move(all)) {}
  std::string_view type_name() const override { return "cycler"; }
  void clear() override { items.clear(); }
  std::vector<Value> items;
  std::size_t position = 0;
};

/// A function: a global, a macro, or a method with the object that it belongs to.
class Function final : public Object {
 public:
  using Call = std::function<Value(const Arguments&)>;
  Function(std::string called, Call function) : name(std::move(called)), call(std::move(function)) {}
  std::string_view type_name() const override { return macro ? "macro" : "function"; }
  void clear() override { call = nullptr; }

  const std::string name;
  Call call;
  bool macro = false;
};

/// Python's len(); nothing for values that have none.
std::optional<std::size_t> size_of(const Value& value);

}  // namespace nemocube::jinja
