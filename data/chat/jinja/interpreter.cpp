#include "data/chat/jinja/interpreter.h"

#include "core/quote.h"
#include "data/chat/jinja/printing.h"

namespace nemocube::jinja {

Interpreter::Interpreter(const Tree& tree, const Source& source, Budget& budget, Context context, Time now)
    : tree_(tree), source_(source), budget_(budget), now_(now) {
  add_globals(*this, context_);
  for (auto& [name, value] : context) context_[name] = std::move(value);
}

Interpreter::~Interpreter() {
  for (const auto& object : objects_) object->clear();
}

Output Interpreter::run() {
  try {
    Frame* frame = new_frame(tree_.scope, nullptr);
    begin(tree_.scope, *frame);
    execute(tree_.body, *frame);
  } catch (const Failure& failure) {
    source_.fail(offset_, failure.what());
  }
  return {std::move(result_), std::move(generation_)};
}

std::string Interpreter::to_text(const Value& value) { return jinja::to_text(value, budget_); }

Frame* Interpreter::new_frame(const Scope& scope, Frame* outer) {
  Frame* frame = nullptr;
  if (free_frames_.empty()) {
    budget_.spend(object_steps);
    budget_.spend_memory(sizeof(Frame));
    frames_.push_back(std::make_unique<Frame>());
    frame = frames_.back().get();
  } else {
    frame = free_frames_.back();
    free_frames_.pop_back();
  }
  frame->outer = outer;
  if (frame->slots.capacity() < scope.variables.size())
    budget_.spend_memory(scope.variables.size() * Budget::bytes_of_value);
  frame->slots.assign(scope.variables.size(), Value::missing());
  budget_.spend(1 + scope.variables.size());
  return frame;
}

void Interpreter::begin(const Scope& scope, Frame& frame) {
  budget_.spend(1 + scope.variables.size());
  for (std::size_t i = 0; i < scope.variables.size(); ++i) {
    const Variable& variable = scope.variables[i];
    Value& slot = frame.slots[i];
    if (variable.begin == Variable::Begin::context) {
      const auto found = context_.find(variable.name);
      slot = found == context_.end() ? Value::missing() : found->second;
    } else if (variable.begin == Variable::Begin::outer) {
      slot = Value(this->variable(variable.outer, frame));
    } else if (variable.begin == Variable::Begin::nothing) {
      slot = Value::missing();
    }
  }
}

void Interpreter::keep(Frame& frame) {
  for (Frame* at = &frame; at && !at->kept; at = at->outer) at->kept = true;
}

void Interpreter::release(Frame* frame) {
  if (frame->kept) return;
  frame->slots.clear();
  free_frames_.push_back(frame);
}

Value& Interpreter::variable(const FrameSlot& place, Frame& frame) {
  Frame* at = &frame;
  for (std::uint32_t i = 0; i < place.up; ++i) at = at->outer;
  return at->slots[place.slot];
}

void Interpreter::assign(const Expression& target, const Value& value, Frame& frame) {
  budget_.spend();
  if (target.kind == Expression::Kind::name) {
    variable(target.place, frame) = value;
    return;
  }
  if (target.kind == Expression::Kind::attribute_target) {
    if (target.attribute.starts_with('_'))
      raise("want an attribute that does not begin with _, got ", quote(target.attribute));
    auto* space = variable(target.place, frame).as<Namespace>();
    if (!space)
      raise("want a namespace to set an attribute of, got ", kind_of(variable(target.place, frame)));
    space->attributes.set(Value(target.attribute), value, budget_);
    return;
  }
  Iterator* items = iterate(value);
  for (const auto& part : target.parts) {
    Value item;
    if (!items->next(item)) raise("want ", target.parts.size(), " values to unpack, got fewer");
    assign(*part, item, frame);
  }
  if (Value more; items->next(more)) raise("want ", target.parts.size(), " values to unpack, got more");
}

Value Interpreter::read_target(const Expression& target, Frame& frame) {
  if (target.kind == Expression::Kind::name) return variable(target.place, frame);
  std::vector<Value> values;
  for (const auto& part : target.parts) values.push_back(read_target(*part, frame));
  return make_tuple(std::move(values), budget_);
}

void Interpreter::print(std::string_view text) {
  budget_.check_text(out_->size() + text.size());
  budget_.spend(1 + text.size() / 16);
  budget_.spend_memory(text.size());
  *out_ += text;
}

}  // namespace nemocube::jinja
