#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "data/chat/jinja/budget.h"

/// Values of a template behave as Python's. Texts, lists, tuples and mappings never change once made: the
/// sandbox of transformers forbids every method that would.
namespace nemocube::jinja {

/// Python's integers have no limit; these have 128 bits, and larger numbers are errors.
using Integer = __int128;

class Value;
class Mapping;

/// A text in valid UTF-8. Lengths and positions that templates see count code points.
struct Text {
  std::string bytes;
  std::size_t length = 0;  ///< code points
  bool markup = false;     ///< MarkupSafe's Markup: text that is appended gets escaped
  bool ascii() const { return length == bytes.size(); }
};

struct Items {
  std::vector<Value> values;
  int depth = 1;          ///< of lists, tuples and mappings inside each other
  bool grouping = false;  ///< a tuple of the filter groupby, with attributes `grouper` and `list`
};

/// A value that a template can call or iterate, or whose attributes it sets. The interpreter owns objects and
/// deletes them after rendering, because they may refer to each other in circles.
class Object {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;
  virtual std::string_view type_name() const = 0;
  /// Lets go of all values, so that destructors never nest.
  virtual void clear() {}
};

/// A name or an element that does not exist: prints as nothing, and most operations on it fail.
struct Undefined {
  std::shared_ptr<const std::string> reason;  ///< the message of an operation on it
};

class Value {
 public:
  struct Missing {};  ///< a variable that has no value yet
  struct None {};
  using TextPointer = std::shared_ptr<const Text>;
  struct List {
    std::shared_ptr<const Items> items;
  };
  struct Tuple {
    std::shared_ptr<const Items> items;
  };
  using MappingPointer = std::shared_ptr<const Mapping>;

  Value() : data_(None{}) {}
  Value(bool value) : data_(value) {}
  Value(Integer value) : data_(value) {}
  Value(int value) : data_(Integer{value}) {}
  Value(std::int64_t value) : data_(Integer{value}) {}
  Value(std::size_t value) : data_(static_cast<Integer>(value)) {}
  Value(double value) : data_(value) {}
  Value(std::string bytes, bool markup = false);
  Value(const char* bytes) : Value(std::string(bytes)) {}
  Value(List list) : data_(std::move(list)) {}
  Value(Tuple tuple) : data_(std::move(tuple)) {}
  Value(MappingPointer mapping) : data_(std::move(mapping)) {}
  Value(Object* object) : data_(object) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}

  static Value missing() { return Value(Missing{}); }
  static Value undefined(std::string reason) {
    reason.shrink_to_fit();
    return Undefined{std::make_shared<const std::string>(std::move(reason))};
  }

  bool is_missing() const { return std::holds_alternative<Missing>(data_); }
  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_text() const { return std::holds_alternative<TextPointer>(data_); }
  bool is_list() const { return std::holds_alternative<List>(data_); }
  bool is_tuple() const { return std::holds_alternative<Tuple>(data_); }
  bool is_markup() const { return is_text() && text().markup; }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_integral() const { return is_bool() || std::holds_alternative<Integer>(data_); }  ///< bool too
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_integral() || is_float(); }
  bool is_mapping() const { return std::holds_alternative<MappingPointer>(data_); }

  // pre: the value holds this alternative.
  const Undefined& undefined_value() const { return std::get<Undefined>(data_); }
  const Text& text() const { return *std::get<TextPointer>(data_); }
  const std::string& bytes() const { return text().bytes; }
  Integer integer() const { return is_bool() ? Integer{std::get<bool>(data_)} : std::get<Integer>(data_); }
  bool boolean() const { return std::get<bool>(data_); }
  double real() const { return std::get<double>(data_); }
  const Mapping& mapping() const { return *std::get<MappingPointer>(data_); }
  const MappingPointer& mapping_pointer() const { return std::get<MappingPointer>(data_); }

  /// The elements of a list or tuple, else null.
  const std::shared_ptr<const Items>& items() const;
  template <class T>
  T* as() const {
    const auto* object = std::get_if<Object*>(&data_);
    return object ? dynamic_cast<T*>(*object) : nullptr;
  }

  bool same_as(const Value& other) const;  ///< Python's `is`
  int depth() const;                       ///< 0 for a value without inner values

 private:
  explicit Value(Missing missing) : data_(missing) {}
  std::variant<None, Missing, Undefined, bool, Integer, double, TextPointer, List, Tuple, MappingPointer,
               Object*>
      data_;
};

/// A mapping in the order of insertion. Keys are numbers, texts, None and tuples of them; 1, 1.0 and True are
/// the same key.
class Mapping {
 public:
  using Entry = std::pair<Value, Value>;

  const std::vector<Entry>& entries() const { return entries_; }
  std::size_t size() const { return entries_.size(); }
  int depth() const { return depth_; }
  /// Bytes of the mapping itself, without the contents of keys and values.
  std::size_t bytes() const {
    return entries_.size() * (sizeof(Entry) + sizeof(std::uint64_t)) + slots_.size() * sizeof(std::uint32_t);
  }

  /// Null when there is no such key. Throws Failure for a key that has no hash.
  const Value* find(const Value& key, Budget& budget) const;
  const Value* find_text(std::string_view key, Budget& budget) const;
  /// Throws Failure for a key that has no hash, and at the limits.
  void set(Value key, Value value, Budget& budget);

 private:
  template <class IsKey>
  std::optional<std::size_t> position(std::uint64_t hash, Budget& budget, IsKey&& is_key) const;
  std::size_t first_slot(std::uint64_t hash) const;
  void index(std::size_t entry, Budget& budget);
  void grow(Budget& budget);

  std::vector<Entry> entries_;
  // Once there are many entries: their hashes, and a hash table in which a search goes on to the
  // next slot until it meets an empty one. A search spends a step for each slot, so that keys
  // made to collide count with their real cost.
  std::vector<std::uint64_t> hashes_;
  std::vector<std::uint32_t> slots_;
  int depth_ = 1;
};

Value make_list(std::vector<Value> values, Budget& budget);
Value make_tuple(std::vector<Value> values, Budget& budget, bool grouping = false);
Value make_mapping(Mapping mapping);

/// The type of a value in messages: "an integer", "a text".
std::string kind_of(const Value& value);

/// Python's bool().
bool truth(const Value& value);

/// Throws the Failure of an undefined value.
[[noreturn]] void refuse_undefined(const Value& value);

}  // namespace nemocube::jinja
