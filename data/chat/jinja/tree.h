#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/chat/jinja/numbers.h"
#include "data/chat/jinja/value.h"

/// A parsed template, as the parser leaves it. resolve_names() (scopes.h) adds where variables lie.
namespace nemocube::jinja {

/// Where a variable lies: a slot of the frame that is `up` scopes further out.
struct FrameSlot {
  std::uint32_t up = 0, slot = 0;
};

struct Expression;
struct Statement;
using ExpressionPointer = std::unique_ptr<Expression>;
using Body = std::vector<std::unique_ptr<Statement>>;

/// Arguments as written.
struct CallArguments {
  std::vector<ExpressionPointer> positional;
  std::vector<std::pair<std::string, ExpressionPointer>> named;
  ExpressionPointer star, double_star;
};

enum class Comparison { equal, unequal, less, less_or_equal, greater, greater_or_equal, in, not_in };

struct Expression {
  enum class Kind {
    constant,     // value
    name,         // name
    tuple,        // parts
    list,         // parts
    mapping,      // parts: key, value, key, value...
    attribute,    // parts[0] . name
    item,         // parts[0] [ parts[1] ]
    slice,        // parts[0] [ parts[1] : parts[2] : parts[3] ], null where absent
    call,         // parts[0] ( arguments )
    filter,       // parts[0] | name ( arguments ); parts[0] is null in blocks, whose text it is applied to
    test,         // parts[0] is name ( arguments )
    arithmetic,   // parts[0] op parts[1]
    negative,     // - parts[0]
    positive,     // + parts[0]
    negation,     // not parts[0]
    conjunction,  // parts[0] and parts[1]
    disjunction,  // parts[0] or parts[1]
    comparison,   // parts[0] comparisons[0] parts[1] comparisons[1] parts[2] ...
    join,         // parts[0] ~ parts[1] ~ ...
    conditional,  // parts[1] if parts[0] else parts[2]; parts[2] is null where absent
    attribute_target  // name . attribute, which a set statement assigns
  };
  Kind kind = Kind::constant;
  std::size_t offset = 0;  ///< in the source
  int height = 1;          ///< of the tree below
  std::string name{}, attribute{};
  Value value{};
  std::vector<ExpressionPointer> parts{};
  CallArguments arguments{};
  Operator op = Operator::add;
  std::vector<Comparison> comparisons{};
  FrameSlot place{};
};

/// A variable of a scope when the scope begins.
struct Variable {
  enum class Begin {
    parameter,  // set by who enters the scope
    context,    // the value that the caller of the template gave
    outer,      // the value of a variable further out
    nothing     // no value until one is assigned
  };
  std::string name;
  Begin begin = Begin::nothing;
  FrameSlot outer{};
};

/// A scope: the variables of a frame.
struct Scope {
  std::vector<Variable> variables;
};

struct Parameter {
  std::string name;
  std::size_t offset = 0;
  ExpressionPointer otherwise{};  ///< the default; may be null
  std::uint32_t slot = 0;
};

/// A macro, the body of a call block or of a generation block.
struct Macro {
  std::string name;  ///< empty for call and generation blocks
  std::vector<Parameter> parameters;
  Body body;
  Scope scope;
  // Slots of these names, where the body uses them without declaring them.
  std::optional<std::uint32_t> caller, varargs, kwargs;
};

struct Branch {
  ExpressionPointer condition;
  Body body;
};

struct Statement {
  enum class Kind {
    output,        // values
    loop,          // for target in value if condition: body, otherwise
    branches,      // branches, otherwise
    assign,        // target = value
    assign_block,  // target = body | filter
    macro,         // macro
    call_block,    // value is the call, macro its caller
    generation,    // macro holds the body
    filter_block,  // body | filter
    with,          // targets = values in body
    leave,         // break
    next           // continue
  };
  Kind kind = Kind::output;
  std::size_t offset = 0;
  std::vector<ExpressionPointer> values{};
  ExpressionPointer target{}, value{}, condition{}, filter{};
  std::vector<ExpressionPointer> targets{};
  bool recursive = false;
  Body body{}, otherwise{};
  std::vector<Branch> branches{};
  std::unique_ptr<Macro> macro{};
  FrameSlot place{};  ///< of the macro's name

  // Scopes: of the body; of a loop's condition and of its `otherwise`.
  Scope scope{}, condition_scope{}, otherwise_scope{};
  std::optional<std::uint32_t> loop_slot{};  ///< of the variable `loop`, where the body uses it
  ExpressionPointer condition_target{};      ///< the loop's target in the scope of its condition
};

struct Tree {
  Body body;
  Scope scope;
  bool has_generation = false;
};

}  // namespace nemocube::jinja
