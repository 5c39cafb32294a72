#include "core/quote.h"
#include "data/chat/jinja/arguments.h"
#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/local_time.h"

namespace nemocube::jinja {

namespace {

constexpr std::size_t max_range = 100'000;  // items, as in Jinja's sandbox

Value make_range(Interpreter& interpreter, const Arguments& arguments) {
  const Bound bound = bind("range", arguments, {"start", "stop", "step"}, 1, By::position);
  const bool one = !bound.has(1);
  const Integer start = one ? 0 : bound.integer(0), stop = one ? bound.integer(0) : bound.integer(1);
  const Integer step = bound.integer(2, 1);
  if (step == 0) raise("range wants another step than 0");
  const Integer distance = step > 0 ? stop - start : start - stop, stride = step > 0 ? step : -step;
  const Integer size = distance > 0 ? (distance + stride - 1) / stride : 0;
  if (size > static_cast<Integer>(max_range)) raise("range wants at most ", max_range, " items");
  auto* range = interpreter.make<Range>(start, step, static_cast<std::size_t>(size));
  range->stop = stop;
  return Value(range);
}

/// dict(mapping or pairs, name=value...)
Mapping make_dict(Interpreter& interpreter, std::string_view what, const Arguments& arguments) {
  if (arguments.positional.size() > 1) raise(what, " wants at most one argument without a name");
  Mapping mapping;
  for (const Value& source : arguments.positional) {
    if (source.is_mapping()) {
      mapping = source.mapping();
      interpreter.budget().spend_items(mapping.size());
      interpreter.budget().spend_memory(mapping.bytes());
      continue;
    }
    if (source.is_undefined()) refuse_undefined(source);
    for (const Value& pair : interpreter.collect(source)) {
      const std::vector<Value> both = interpreter.collect(pair);
      if (both.size() != 2) raise(what, " wants pairs of a key and a value, got ", both.size(), " items");
      mapping.set(both[0], both[1], interpreter.budget());
    }
  }
  for (const auto& [name, value] : arguments.named) mapping.set(Value(name), value, interpreter.budget());
  return mapping;
}

Value make_namespace(Interpreter& interpreter, const Arguments& arguments) {
  auto* space = interpreter.make<Namespace>();
  space->attributes = make_dict(interpreter, "namespace", arguments);
  for (const auto& [name, value] : space->attributes.entries())
    if (name.is_text() && name.bytes().starts_with('_'))
      raise("namespace wants attributes that do not begin with _, got ", quote(name.bytes()));
  return Value(space);
}

Value make_cycler(Interpreter& interpreter, const Arguments& arguments) {
  if (!arguments.named.empty()) raise("cycler wants arguments without names");
  if (arguments.positional.empty()) raise("cycler wants at least one item");
  return Value(interpreter.make<Cycler>(arguments.positional));
}

Value make_joiner(Interpreter& interpreter, const Arguments& arguments) {
  const Value separator = bind("joiner", arguments, {"sep"}).value(0, Value(", "));
  return Value(interpreter.make<Function>("joiner", [separator, used = false](const Arguments& none) mutable {
    bind("a joiner", none, {});
    return std::exchange(used, true) ? separator : Value("");
  }));
}

Value raise_exception(Interpreter& interpreter, const Arguments& arguments) {
  const Value message = bind("raise_exception", arguments, {"message"}, 1)[0];
  raise("the template refuses this conversation: ", interpreter.to_text(message));
}

Value strftime_now(Interpreter& interpreter, const Arguments& arguments) {
  return interpreter.text(
      local_time(bind("strftime_now", arguments, {"format"}, 1).text(0), interpreter.now()));
}

}  // namespace

void add_globals(Interpreter& interpreter, Interpreter::Context& context) {
  const auto add = [&](const char* name, Value (*make)(Interpreter&, const Arguments&)) {
    context[name] = Value(interpreter.make<Function>(
        name, [&interpreter, make](const Arguments& arguments) { return make(interpreter, arguments); }));
  };
  add("range", make_range);
  add("dict", [](Interpreter& i, const Arguments& a) { return make_mapping(make_dict(i, "dict", a)); });
  add("namespace", make_namespace);
  add("cycler", make_cycler);
  add("joiner", make_joiner);
  add("raise_exception", raise_exception);
  add("strftime_now", strftime_now);
  add("lipsum", [](Interpreter&, const Arguments&) -> Value { raise("lipsum is not in this build"); });
}

}  // namespace nemocube::jinja
