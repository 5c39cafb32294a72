#include <algorithm>

#include "core/quote.h"
#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/text.h"

namespace nemocube::jinja {

Interpreter::Flow Interpreter::execute(const Body& body, Frame& frame) {
  for (const auto& statement : body)
    if (const Flow flow = execute(*statement, frame); flow != Flow::normal) return flow;
  return Flow::normal;
}

Interpreter::Flow Interpreter::execute(const Statement& statement, Frame& frame) {
  offset_ = statement.offset;
  const Budget::Level level(budget_);
  budget_.spend();
  switch (statement.kind) {
    case Statement::Kind::output:
      execute_output(statement, frame);
      return Flow::normal;
    case Statement::Kind::loop:
      return execute_loop(statement, frame);
    case Statement::Kind::branches:
      return execute_branches(statement, frame);
    case Statement::Kind::assign:
      execute_assign(statement, frame);
      return Flow::normal;
    case Statement::Kind::assign_block:
    case Statement::Kind::filter_block:
      return execute_block(statement, frame);
    case Statement::Kind::macro:
      variable(statement.place, frame) = Value(make_macro(*statement.macro, frame));
      return Flow::normal;
    case Statement::Kind::call_block:
      execute_call_block(statement, frame);
      return Flow::normal;
    case Statement::Kind::generation:
      execute_generation(statement, frame);
      return Flow::normal;
    case Statement::Kind::with:
      return execute_with(statement, frame);
    case Statement::Kind::leave:
      return Flow::leave;
    default:
      return Flow::next;
  }
}

void Interpreter::execute_output(const Statement& statement, Frame& frame) {
  for (const auto& expression : statement.values) {
    const Value value = evaluate(*expression, frame);
    offset_ = expression->offset;
    if (value.is_text())
      print(value.bytes());
    else
      print(to_text(value));
  }
}

Interpreter::Flow Interpreter::execute_branches(const Statement& statement, Frame& frame) {
  for (const Branch& branch : statement.branches)
    if (truth(evaluate(*branch.condition, frame))) return execute(branch.body, frame);
  return execute(statement.otherwise, frame);
}

Interpreter::Flow Interpreter::execute_loop(const Statement& statement, Frame& frame) {
  const Value iterable = evaluate(*statement.value, frame);
  offset_ = statement.value->offset;
  if (!statement.recursive) return run_loop(statement, frame, iterable, 0);
  print(recursive_text(statement, frame, iterable, 0));
  return Flow::normal;
}

std::string Interpreter::recursive_text(const Statement& statement, Frame& frame, const Value& iterable,
                                        std::int64_t depth) {
  const Budget::Level level(budget_);
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  run_loop(statement, frame, iterable, depth);
  out_ = outer;
  return text;
}

/// The items for which the loop's condition holds.
Iterator* Interpreter::selected(const Statement& statement, Frame& frame, const Value& iterable) {
  Iterator* items = iterate(iterable);
  if (!statement.condition) return items;
  Frame* own = new_frame(statement.condition_scope, &frame);
  keep(*own);
  begin(statement.condition_scope, *own);
  return generate([this, &statement, items, own](Value& value) {
    while (items->next(value)) {
      assign(*statement.condition_target, value, *own);
      if (!truth(evaluate(*statement.condition, *own))) continue;
      value = read_target(*statement.condition_target, *own);
      return true;
    }
    return false;
  });
}

Interpreter::Flow Interpreter::run_loop(const Statement& statement, Frame& frame, const Value& iterable,
                                        std::int64_t depth) {
  auto* loop = make<Loop>(budget_);
  loop->iterator = selected(statement, frame, iterable);
  loop->iterable = statement.condition ? Value(loop->iterator) : iterable;
  loop->depth0 = depth;
  if (statement.recursive) {
    keep(frame);
    loop->recurse = [this, &statement, &frame](const Value& inner, std::int64_t inner_depth) {
      return text(recursive_text(statement, frame, inner, inner_depth));
    };
  }
  Frame* own = new_frame(statement.scope, &frame);
  bool finished_one = false;  // as Jinja has it, rounds that end in continue or break do not count
  for (Value value; loop->advance(value);) {
    budget_.spend();
    if (statement.loop_slot) own->slots[*statement.loop_slot] = Value(loop);
    assign(*statement.target, value, *own);
    begin(statement.scope, *own);
    const Flow flow = execute(statement.body, *own);
    if (flow == Flow::leave) break;
    finished_one |= flow == Flow::normal;
    offset_ = statement.value->offset;
  }
  release(own);
  if (finished_one || statement.otherwise.empty()) return Flow::normal;
  Frame* otherwise = new_frame(statement.otherwise_scope, &frame);
  begin(statement.otherwise_scope, *otherwise);
  const Flow flow = execute(statement.otherwise, *otherwise);
  release(otherwise);
  return flow;
}

void Interpreter::check_namespaces(const Expression& target, Frame& frame) {
  if (target.kind == Expression::Kind::attribute_target && !variable(target.place, frame).as<Namespace>())
    raise("want a namespace to set the attribute ", quote(target.attribute), " of, got ",
          kind_of(variable(target.place, frame)));
  for (const auto& part : target.parts) check_namespaces(*part, frame);
}

void Interpreter::execute_assign(const Statement& statement, Frame& frame) {
  check_namespaces(*statement.target, frame);
  const Value value = evaluate(*statement.value, frame);
  offset_ = statement.target->offset;
  assign(*statement.target, value, frame);
}

/// {% set x %}...{% endset %} and {% filter f %}...{% endfilter %}
Interpreter::Flow Interpreter::execute_block(const Statement& statement, Frame& frame) {
  Frame* own = new_frame(statement.scope, &frame);
  begin(statement.scope, *own);
  std::string captured;
  std::string* const outer = std::exchange(out_, &captured);
  const Flow flow = execute(statement.body, *own);
  out_ = outer;
  if (flow != Flow::normal) return flow;
  Value value;
  if (statement.filter) {
    const std::string* const outer_text = std::exchange(block_text_, &captured);
    value = evaluate(*statement.filter, *own);
    block_text_ = outer_text;
  } else {
    value = text(std::move(captured));
  }
  offset_ = statement.offset;
  if (statement.kind == Statement::Kind::filter_block)
    print(to_text(value));
  else
    assign(*statement.target, value, frame);
  release(own);
  return Flow::normal;
}

Interpreter::Flow Interpreter::execute_with(const Statement& statement, Frame& frame) {
  Frame* own = new_frame(statement.scope, &frame);
  begin(statement.scope, *own);
  for (std::size_t i = 0; i < statement.targets.size(); ++i)
    assign(*statement.targets[i], evaluate(*statement.values[i], frame), *own);
  const Flow flow = execute(statement.body, *own);
  release(own);
  return flow;
}

void Interpreter::execute_call_block(const Statement& statement, Frame& frame) {
  const Value caller(make_macro(*statement.macro, frame));
  print(to_text(evaluate_call(*statement.value, frame, &caller)));
}

void Interpreter::execute_generation(const Statement& statement, Frame& frame) {
  const std::string body = run_macro(*statement.macro, frame, {});
  printed_length_ += length_of(std::string_view(result_).substr(printed_bytes_));
  printed_bytes_ = result_.size();
  const std::size_t begin = printed_length_;
  generation_.emplace_back(begin, begin + length_of(body));
  print(body);
}

Function* Interpreter::make_macro(const Macro& macro, Frame& frame) {
  keep(frame);
  auto* function = make<Function>(macro.name, [this, &macro, &frame](const Arguments& arguments) {
    return text(run_macro(macro, frame, arguments));
  });
  function->macro = true;
  return function;
}

std::string Interpreter::run_macro(const Macro& macro, Frame& closure, const Arguments& arguments) {
  const Budget::Level level(budget_);
  Frame* frame = new_frame(macro.scope, &closure);
  bind_parameters(macro, *frame, arguments);
  begin(macro.scope, *frame);
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  for (const Parameter& parameter : macro.parameters) {
    Value& slot = frame->slots[parameter.slot];
    if (!slot.is_missing()) continue;
    Value value = parameter.otherwise
                      ? evaluate(*parameter.otherwise, *frame)
                      : Value::undefined(cat("parameter ", quote(parameter.name), " was not provided"));
    frame->slots[parameter.slot] = std::move(value);
  }
  execute(macro.body, *frame);
  out_ = outer;
  release(frame);
  return text;
}

void Interpreter::bind_parameters(const Macro& macro, Frame& frame, const Arguments& arguments) {
  const std::string name = macro.name.empty() ? "caller" : macro.name;
  auto named = arguments.named;
  const auto take = [this, &named](const std::string& key) -> std::optional<Value> {
    budget_.spend(named.size() * (1 + key.size() / 64));
    const auto found = std::ranges::find(named, key, &std::pair<std::string, Value>::first);
    if (found == named.end()) return std::nullopt;
    Value value = std::move(found->second);
    named.erase(found);
    return value;
  };
  const std::size_t given = std::min(arguments.positional.size(), macro.parameters.size());
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    Value& slot = frame.slots[macro.parameters[i].slot];
    if (i < given)
      slot = arguments.positional[i];
    else if (auto value = take(macro.parameters[i].name))
      slot = std::move(*value);
  }
  if (macro.caller) {
    auto caller = take("caller");
    frame.slots[*macro.caller] =
        caller && !caller->is_none() ? std::move(*caller) : Value::undefined("No caller defined");
  }
  if (macro.kwargs) {
    Mapping rest;
    for (auto& [key, value] : named) rest.set(Value(key), std::move(value), budget_);
    frame.slots[*macro.kwargs] = make_mapping(std::move(rest));
  } else if (!named.empty()) {
    raise("the macro ", quote(name), " has no parameter ", quote(named.front().first));
  }
  if (macro.varargs) {
    const auto begin = arguments.positional.begin() + static_cast<std::ptrdiff_t>(given);
    frame.slots[*macro.varargs] = make_tuple({begin, arguments.positional.end()}, budget_);
  } else if (arguments.positional.size() > macro.parameters.size()) {
    raise("the macro ", quote(name), " wants at most ", macro.parameters.size(), " arguments, got ",
          arguments.positional.size());
  }
}

}  // namespace nemocube::jinja
