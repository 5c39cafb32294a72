#include "core/quote.h"
#include "data/chat/jinja/compare.h"
#include "data/chat/jinja/filters.h"
#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/methods.h"
#include "data/chat/jinja/value_tests.h"

namespace nemocube::jinja {

Value Interpreter::evaluate(const Expression& node, Frame& frame) {
  const Budget::Level level(budget_);
  budget_.spend();
  switch (node.kind) {
    case Expression::Kind::constant:
      return node.value;
    case Expression::Kind::name: {
      const Value& value = variable(node.place, frame);
      return value.is_missing() ? undefined(quote(node.name) + " is undefined") : value;
    }
    case Expression::Kind::tuple:
    case Expression::Kind::list:
      return evaluate_items(node, frame);
    case Expression::Kind::mapping:
      return evaluate_mapping(node, frame);
    case Expression::Kind::attribute: {
      const Value object = operand(node, 0, frame);
      offset_ = node.offset;
      return attribute(object, node.name);
    }
    case Expression::Kind::item: {
      const Value object = operand(node, 0, frame);
      const Value key = operand(node, 1, frame);
      offset_ = node.offset;
      return item(object, key);
    }
    case Expression::Kind::slice:
      return evaluate_slice(node, frame);
    case Expression::Kind::call:
      return evaluate_call(node, frame);
    case Expression::Kind::filter:
      return evaluate_filter(node, frame);
    case Expression::Kind::test:
      return evaluate_test(node, frame);
    case Expression::Kind::arithmetic: {
      const Value a = operand(node, 0, frame);
      const Value b = operand(node, 1, frame);
      offset_ = node.offset;
      return binary(node.op, a, b);
    }
    case Expression::Kind::negative:
    case Expression::Kind::positive:
      return evaluate_sign(node, frame);
    case Expression::Kind::negation:
      return !truth(operand(node, 0, frame));
    case Expression::Kind::conjunction: {
      Value left = operand(node, 0, frame);
      return truth(left) ? operand(node, 1, frame) : left;
    }
    case Expression::Kind::disjunction: {
      Value left = operand(node, 0, frame);
      return truth(left) ? left : operand(node, 1, frame);
    }
    case Expression::Kind::comparison:
      return evaluate_comparison(node, frame);
    case Expression::Kind::join:
      return evaluate_join(node, frame);
    case Expression::Kind::conditional:
      return evaluate_conditional(node, frame);
    default:
      expect(false, "targets are not evaluated");
      return {};
  }
}

Value Interpreter::evaluate_items(const Expression& node, Frame& frame) {
  std::vector<Value> values;
  budget_.spend_memory(node.parts.size() * Budget::bytes_of_value);
  for (const auto& part : node.parts) values.push_back(evaluate(*part, frame));
  offset_ = node.offset;
  return node.kind == Expression::Kind::list ? list(std::move(values))
                                             : make_tuple(std::move(values), budget_);
}

Value Interpreter::evaluate_mapping(const Expression& node, Frame& frame) {
  Mapping mapping;
  for (std::size_t i = 0; i < node.parts.size(); i += 2) {
    Value key = operand(node, i, frame);
    Value value = operand(node, i + 1, frame);
    offset_ = node.parts[i]->offset;
    mapping.set(std::move(key), std::move(value), budget_);
  }
  return make_mapping(std::move(mapping));
}

Value Interpreter::evaluate_slice(const Expression& node, Frame& frame) {
  const Value object = operand(node, 0, frame);
  Value bounds[3];  // None where absent
  for (std::size_t i = 0; i < 3; ++i)
    if (node.parts[i + 1]) bounds[i] = operand(node, i + 1, frame);
  offset_ = node.offset;
  return slice(object, bounds[0], bounds[1], bounds[2]);
}

Value Interpreter::evaluate_sign(const Expression& node, Frame& frame) {
  const Value value = operand(node, 0, frame);
  offset_ = node.offset;
  const bool minus = node.kind == Expression::Kind::negative;
  if (value.is_undefined()) refuse_undefined(value);
  if (value.is_integral()) return minus ? negated(value.integer()) : value.integer();
  if (!value.is_float()) raise("want a number behind ", minus ? "-" : "+", ", got ", kind_of(value));
  return minus ? -value.real() : value.real();
}

bool Interpreter::compare(Comparison comparison, const Value& a, const Value& b) {
  switch (comparison) {
    case Comparison::equal:
      return equal(a, b, budget_);
    case Comparison::unequal:
      return !equal(a, b, budget_);
    case Comparison::less:
      return less(a, b, budget_);
    case Comparison::greater:
      return less(b, a, budget_);
    case Comparison::less_or_equal:
    case Comparison::greater_or_equal: {
      const bool smaller =
          comparison == Comparison::less_or_equal ? less(a, b, budget_) : less(b, a, budget_);
      return smaller || equal(a, b, budget_);
    }
    case Comparison::in:
      return contains(b, a);
    default:
      return !contains(b, a);
  }
}

Value Interpreter::evaluate_comparison(const Expression& node, Frame& frame) {
  Value left = operand(node, 0, frame);
  for (std::size_t i = 0; i < node.comparisons.size(); ++i) {
    Value right = operand(node, i + 1, frame);
    offset_ = node.offset;
    if (!compare(node.comparisons[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_join(const Expression& node, Frame& frame) {
  std::string joined;
  for (const auto& part : node.parts) {
    const Value value = evaluate(*part, frame);
    offset_ = part->offset;
    joined += value.is_text() ? value.bytes() : to_text(value);
    budget_.check_text(joined.size());
  }
  return text(std::move(joined));
}

Value Interpreter::evaluate_conditional(const Expression& node, Frame& frame) {
  if (truth(operand(node, 0, frame))) return operand(node, 1, frame);
  if (node.parts[2]) return operand(node, 2, frame);
  return Value::undefined("the inline if has no else, and its condition is false");
}

Arguments Interpreter::evaluate_arguments(const CallArguments& written, Frame& frame) {
  Arguments arguments;
  for (const auto& value : written.positional) arguments.positional.push_back(evaluate(*value, frame));
  for (const auto& [name, value] : written.named) arguments.named.emplace_back(name, evaluate(*value, frame));
  if (written.star) {
    const Value more = evaluate(*written.star, frame);
    for (Value& value : collect(more)) arguments.positional.push_back(std::move(value));
    budget_.spend_memory(arguments.positional.size() *
                         Budget::bytes_of_value);  // filters such as map keep them once more
  }
  if (written.double_star) {
    const Value more = evaluate(*written.double_star, frame);
    if (!more.is_mapping()) raise("want a mapping behind **, got ", kind_of(more));
    for (const auto& [key, value] : more.mapping().entries()) {
      if (!key.is_text()) raise("want texts as keys behind **, got ", kind_of(key));
      budget_.spend(1 + arguments.named.size() * (1 + key.bytes().size() / 64));
      for (const auto& [name, other] : arguments.named)
        if (name == key.bytes()) raise("the argument ", quote(name), " is given twice");
      budget_.spend_memory(sizeof(arguments.named[0]) + key.bytes().size());
      arguments.named.emplace_back(key.bytes(), value);
    }
  }
  return arguments;
}

Value Interpreter::evaluate_call(const Expression& node, Frame& frame, const Value* caller) {
  const Expression& callee = *node.parts[0];
  const auto arguments = [&] {
    Arguments result = evaluate_arguments(node.arguments, frame);
    if (caller) result.named.emplace_back("caller", *caller);
    offset_ = node.offset;
    return result;
  };
  if (callee.kind != Expression::Kind::attribute) {
    const Value function = evaluate(callee, frame);
    return call(function, arguments());
  }
  // A method that is called at once needs no object of its own.
  const Value object = operand(callee, 0, frame);
  if (const Method* method = find_method(object, callee.name)) {
    const Arguments given = arguments();
    spend_for(object);
    return method->call(*this, object, given);
  }
  offset_ = callee.offset;
  const Value function = attribute(object, callee.name);
  return call(function, arguments());
}

Value Interpreter::evaluate_filter(const Expression& node, Frame& frame) {
  const Value value = node.parts[0] ? operand(node, 0, frame) : text(*block_text_);
  const Arguments arguments = evaluate_arguments(node.arguments, frame);
  offset_ = node.offset;
  const Filter* filter = find_filter(node.name);
  if (!filter) raise(missing_filter(node.name));
  spend_for(value);
  return (*filter)(*this, value, arguments);
}

Value Interpreter::evaluate_test(const Expression& node, Frame& frame) {
  const Value value = operand(node, 0, frame);
  const Arguments arguments = evaluate_arguments(node.arguments, frame);
  offset_ = node.offset;
  const ValueTest* test = find_test(node.name);
  if (!test) raise(missing_test(node.name));
  spend_for(value);
  return (*test)(*this, value, arguments);
}

}  // namespace nemocube::jinja
