#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/chat/jinja/lexer.h"
#include "data/chat/jinja/objects.h"
#include "data/chat/jinja/tree.h"
#include "data/text/moment.h"

namespace nemocube::jinja {

/// The variables of a scope while it runs.
struct Frame {
  Frame* outer = nullptr;
  std::vector<Value> slots;
  bool kept = false;  ///< a macro refers to it
};

/// The text of a rendering, and the ranges that generation blocks printed, in code points as transformers
/// counts (only text printed outside of macros and captured blocks).
struct Output {
  std::string text;
  std::vector<std::pair<std::size_t, std::size_t>> generation;
};

/// Renders a template once.
class Interpreter {
 public:
  using Context = std::map<std::string, Value>;
  using Time = Moment;

  Interpreter(const Tree& tree, const Source& source, Budget& budget, Context context, Time now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// Throws Error with the place of the operation that failed.
  Output run();

  // For filters, tests and methods. These functions throw Failure.
  Budget& budget() { return budget_; }
  Time now() const { return now_; }
  /// Called before an operation that may read all of `value`.
  void spend_for(const Value& value) {
    if (value.is_text()) budget_.spend(1 + value.bytes().size() / 16);
  }
  Value text(std::string bytes, bool markup = false) {
    budget_.spend_text(bytes.size());
    if (bytes.capacity() > 64 + 2 * bytes.size()) bytes.shrink_to_fit();  // what was counted is what is kept
    return Value(std::move(bytes), markup);
  }
  Value undefined(std::string reason) {
    budget_.spend_memory(Budget::bytes_of_text + reason.size());
    return Value::undefined(std::move(reason));
  }
  Value list(std::vector<Value> values) { return make_list(std::move(values), budget_); }
  std::string to_text(const Value& value);  ///< Python's str
  template <class T, class... Arguments>
  T* make(Arguments&&... arguments) {
    budget_.spend(object_steps);
    budget_.spend_memory(Budget::bytes_of_text + sizeof(T));
    auto object = std::make_unique<T>(std::forward<Arguments>(arguments)...);
    T* result = object.get();
    objects_.push_back(std::move(object));
    return result;
  }
  Generator* generate(Generator::Next next) { return make<Generator>(budget_, std::move(next)); }
  Iterator* iterate(const Value& value);            ///< throws Failure when the value has no items
  Iterator* iterate_backwards(const Value& value);  ///< null where Python's reversed() refuses
  bool is_iterable(const Value& value) const;
  std::vector<Value> collect(const Value& value);  ///< all items
  bool contains(const Value& container, const Value& item);
  Value attribute(const Value& object, const std::string& name);  ///< object.name
  Value item(const Value& object, const Value& key);              ///< object[key]
  Value slice(const Value& object, const Value& start, const Value& stop, const Value& step);
  Value binary(Operator op, const Value& a, const Value& b);
  bool compare(Comparison comparison, const Value& a, const Value& b);
  Value call(const Value& callee, const Arguments& arguments);

 private:
  enum class Flow { normal, leave, next };
  // The cost of an object, as objects live to the end.
  static constexpr std::uint64_t object_steps = 50;

  // Frames.
  Frame* new_frame(const Scope& scope, Frame* outer);
  void begin(const Scope& scope, Frame& frame);
  static void keep(Frame& frame);  ///< code that runs later refers to this frame and outer ones
  void release(Frame* frame);
  Value& variable(const FrameSlot& place, Frame& frame);
  void assign(const Expression& target, const Value& value, Frame& frame);
  Value read_target(const Expression& target, Frame& frame);

  // Statements.
  Flow execute(const Body& body, Frame& frame);
  Flow execute(const Statement& statement, Frame& frame);
  void execute_output(const Statement& statement, Frame& frame);
  Flow execute_branches(const Statement& statement, Frame& frame);
  Flow execute_loop(const Statement& statement, Frame& frame);
  Flow run_loop(const Statement& statement, Frame& frame, const Value& iterable, std::int64_t depth);
  std::string recursive_text(const Statement& statement, Frame& frame, const Value& iterable,
                             std::int64_t depth);
  Iterator* selected(const Statement& statement, Frame& frame, const Value& iterable);
  void execute_assign(const Statement& statement, Frame& frame);
  Flow execute_block(const Statement& statement, Frame& frame);
  void execute_call_block(const Statement& statement, Frame& frame);
  void execute_generation(const Statement& statement, Frame& frame);
  Flow execute_with(const Statement& statement, Frame& frame);
  void check_namespaces(const Expression& target, Frame& frame);
  Function* make_macro(const Macro& macro, Frame& frame);
  std::string run_macro(const Macro& macro, Frame& closure, const Arguments& arguments);
  void bind_parameters(const Macro& macro, Frame& frame, const Arguments& arguments);
  void print(std::string_view text);

  // Expressions.
  Value evaluate(const Expression& node, Frame& frame);
  Value evaluate_items(const Expression& node, Frame& frame);
  Value evaluate_mapping(const Expression& node, Frame& frame);
  Value evaluate_slice(const Expression& node, Frame& frame);
  Value evaluate_sign(const Expression& node, Frame& frame);
  Value evaluate_comparison(const Expression& node, Frame& frame);
  Value evaluate_join(const Expression& node, Frame& frame);
  Value evaluate_conditional(const Expression& node, Frame& frame);
  Value evaluate_call(const Expression& node, Frame& frame, const Value* caller = nullptr);
  Value evaluate_filter(const Expression& node, Frame& frame);
  Value evaluate_test(const Expression& node, Frame& frame);
  Arguments evaluate_arguments(const CallArguments& arguments, Frame& frame);
  Value operand(const Expression& node, std::size_t part, Frame& frame) {
    return evaluate(*node.parts[part], frame);
  }

  const Tree& tree_;
  const Source& source_;
  Budget& budget_;
  Context context_;
  const Time now_;
  std::vector<std::unique_ptr<Object>> objects_;
  std::vector<std::unique_ptr<Frame>> frames_;
  std::vector<Frame*> free_frames_;
  std::string result_;
  std::string* out_ = &result_;
  const std::string* block_text_ = nullptr;  // the text that a block's filter gets
  std::size_t offset_ = 0;                   // of the operation that runs
  std::vector<std::pair<std::size_t, std::size_t>> generation_;
  std::size_t printed_bytes_ = 0, printed_length_ = 0;  // of the result up to the last generation block
};

/// range, dict, namespace, cycler, joiner, raise_exception and strftime_now.
void add_globals(Interpreter& interpreter, Interpreter::Context& context);

}  // namespace nemocube::jinja
