#include "data/chat/jinja/formatting.h"
#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/text.h"

namespace nemocube::jinja {

namespace {

std::vector<Value> chained(const std::vector<Value>& a, const std::vector<Value>& b, Budget& budget) {
  budget.spend_items(a.size() + b.size());
  std::vector<Value> values = a;
  values.insert(values.end(), b.begin(), b.end());
  return values;
}

Value add_texts(Interpreter& interpreter, const Value& a, const Value& b) {
  const bool markup = a.is_markup() || b.is_markup();
  const auto part = [&](const Value& value) {
    return markup && !value.is_markup() ? escape_markup(value.bytes(), interpreter.budget()) : value.bytes();
  };
  interpreter.budget().check_text(a.bytes().size() + b.bytes().size());
  return interpreter.text(part(a) + part(b), markup);
}

Value repeat(Interpreter& interpreter, const Value& value, Integer times) {
  Budget& budget = interpreter.budget();
  const std::size_t count = times <= 0 ? 0 : static_cast<std::size_t>(std::min(times, Integer{1} << 40));
  if (value.is_text()) {
    const std::string& bytes = value.bytes();
    if (!bytes.empty()) budget.check_text(count > budget.limits().text_bytes ? count : count * bytes.size());
    std::string out;
    for (std::size_t i = 0; i < count && !bytes.empty(); ++i) out += bytes;
    return interpreter.text(std::move(out), value.is_markup());
  }
  const std::vector<Value>& items = value.items()->values;
  if (!items.empty()) budget.spend_items(count > budget.limits().items ? count : count * items.size());
  std::vector<Value> values;
  for (std::size_t i = 0; i < count && !items.empty(); ++i)
    values.insert(values.end(), items.begin(), items.end());
  return value.is_list() ? interpreter.list(std::move(values)) : make_tuple(std::move(values), budget);
}

bool repeats(const Value& value) { return value.is_text() || value.items(); }

}  // namespace

Value Interpreter::binary(Operator op, const Value& a, const Value& b) {
  if (op == Operator::modulo && a.is_text()) return format_percent(*this, a, b);
  for (const Value* value : {&a, &b})
    if (value->is_undefined()) refuse_undefined(*value);
  if (a.is_number() && b.is_number()) return arithmetic(op, a, b);
  if (op == Operator::add && a.is_text() && b.is_text()) return add_texts(*this, a, b);
  if (op == Operator::add && a.is_list() && b.is_list())
    return list(chained(a.items()->values, b.items()->values, budget_));
  if (op == Operator::add && a.is_tuple() && b.is_tuple())
    return make_tuple(chained(a.items()->values, b.items()->values, budget_), budget_);
  if (op == Operator::multiply && repeats(a) && b.is_integral()) return repeat(*this, a, b.integer());
  if (op == Operator::multiply && a.is_integral() && repeats(b)) return repeat(*this, b, a.integer());
  raise("want operands that ", symbol_of(op), " knows, got ", kind_of(a), " and ", kind_of(b));
}

}  // namespace nemocube::jinja
