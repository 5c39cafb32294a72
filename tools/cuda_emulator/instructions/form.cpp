#include "instructions/form.h"

#include <algorithm>
#include <bit>

namespace emulator {
namespace {

const ptx::Scalar* scalar_of(const ptx::Operand& operand) { return std::get_if<ptx::Scalar>(&operand); }

const ptx::RegisterUse* register_of(const ptx::Operand& operand) {
  const ptx::Scalar* scalar = scalar_of(operand);
  if (!scalar)
    if (const auto* vector = std::get_if<ptx::Vector>(&operand); vector && !vector->elements.empty())
      scalar = &vector->elements.front();
  return scalar ? std::get_if<ptx::RegisterUse>(scalar) : nullptr;
}

}  // namespace

TypeGroup group_of(const ptx::Statement& statement) {
  for (const std::string& modifier : statement.modifiers) {
    const ptx::Type type = ptx::type_named(modifier);
    switch (type) {
      case ptx::Type::none:
        continue;
      case ptx::Type::f32:
      case ptx::Type::f64:
      case ptx::Type::tf32:
        return TypeGroup::floating;
      case ptx::Type::f16:
      case ptx::Type::bf16:
      case ptx::Type::f16x2:
      case ptx::Type::bf16x2:
        return TypeGroup::half;
      default:
        return TypeGroup::integer;
    }
  }
  return TypeGroup::integer;
}

Form::Form(const ptx::Statement& statement, Instruction& instruction)
    : statement_(statement),
      instruction_(instruction),
      modifiers_(statement.modifiers.begin(), statement.modifiers.end()),
      taken_(statement.operands.size()) {}

bool Form::take(std::string_view modifier) {
  const auto found = std::find(modifiers_.begin(), modifiers_.end(), modifier);
  if (found == modifiers_.end()) return false;
  modifiers_.erase(found);
  return true;
}

std::string_view Form::take_one_of(std::initializer_list<std::string_view> modifiers) {
  for (const std::string_view modifier : modifiers)
    if (take(modifier)) return modifier;
  return {};
}

ptx::Type Form::take_type() {
  for (auto it = modifiers_.begin(); it != modifiers_.end(); ++it)
    if (const ptx::Type type = ptx::type_named(*it); type != ptx::Type::none) {
      modifiers_.erase(it);
      return type;
    }
  return ptx::Type::none;
}

ptx::Type Form::take_type(std::initializer_list<ptx::Type> allowed) {
  const ptx::Type type = take_type();
  if (std::find(allowed.begin(), allowed.end(), type) == allowed.end())
    unknown(type == ptx::Type::none ? "no type" : "type ." + std::string(ptx::name_of(type)));
  return type;
}

bool Form::has(std::string_view modifier) const {
  return std::find(modifiers_.begin(), modifiers_.end(), modifier) != modifiers_.end();
}

const ptx::Operand& Form::operand(std::size_t number) {
  if (number >= operand_count()) unknown("too few operands");
  taken_[number] = true;
  return statement_.operands[number];
}

void Form::source(std::size_t number, ptx::Type type) {
  const ptx::Scalar* scalar = scalar_of(operand(number));
  if (!scalar) unknown("operand " + std::to_string(number) + " is no single value");
  append(slot_of(*scalar, type, false, false, nullptr));
}

void Form::result(std::size_t number, ptx::Type type) {
  const ptx::Scalar* scalar = scalar_of(operand(number));
  if (!scalar) unknown("operand " + std::to_string(number) + " is no single register");
  append(slot_of(*scalar, type, true, false, nullptr));
}

void Form::source_predicate(std::size_t number, bool& negated) {
  const ptx::Scalar* scalar = scalar_of(operand(number));
  if (!scalar) unknown("operand " + std::to_string(number) + " is no predicate");
  negated = false;
  if (const auto* use = std::get_if<ptx::RegisterUse>(scalar)) {
    negated = use->negated;
    append(slot_of(ptx::RegisterUse{use->index, false}, ptx::Type::pred, false, false, nullptr));
    return;
  }
  append(slot_of(*scalar, ptx::Type::pred, false, false, nullptr));
}

void Form::result_predicate(std::size_t number) { result(number, ptx::Type::pred); }

void Form::result_pair(std::size_t number, ptx::Type first, ptx::Type second) {
  if (const auto* pair = std::get_if<ptx::Pair>(&operand(number))) {
    append(slot_of(pair->first, first, true, false, nullptr));
    append(slot_of(pair->second, second, true, false, nullptr));
    return;
  }
  result(number, first);
  sink();
}

namespace {
std::vector<ptx::Scalar> elements_of(const ptx::Operand& operand) {
  if (const auto* scalar = std::get_if<ptx::Scalar>(&operand)) return {*scalar};
  if (const auto* vector = std::get_if<ptx::Vector>(&operand)) return vector->elements;
  return {};
}
}  // namespace

std::size_t Form::sources(std::size_t number, ptx::Type type) {
  const std::vector<ptx::Scalar> elements = elements_of(operand(number));
  for (const ptx::Scalar& element : elements) append(slot_of(element, type, false, false, nullptr));
  return elements.size();
}

std::size_t Form::results(std::size_t number, ptx::Type type) {
  const std::vector<ptx::Scalar> elements = elements_of(operand(number));
  for (const ptx::Scalar& element : elements) append(slot_of(element, type, true, false, nullptr));
  return elements.size();
}

std::uint32_t Form::wide_result(std::size_t number, ptx::Type type) {
  std::uint32_t width = 0;
  if (wide_results(number, type, width) != 1) unknown("want one register");
  return width;
}

std::uint32_t Form::wide_source(std::size_t number, ptx::Type type) {
  std::uint32_t width = 0;
  if (wide_sources(number, type, width) != 1) unknown("want one value");
  return width;
}

namespace {
bool is_sink(const ptx::Scalar& scalar) { return std::holds_alternative<ptx::Sink>(scalar); }
}  // namespace

std::size_t Form::wide_results(std::size_t number, ptx::Type type, std::uint32_t& register_bytes) {
  register_bytes = 0;
  const std::vector<ptx::Scalar> elements = elements_of(operand(number));
  for (const ptx::Scalar& element : elements) {
    std::uint32_t width = 0;
    append(slot_of(element, type, true, true, &width));
    if (is_sink(element)) continue;
    if (register_bytes && width != register_bytes) unknown("registers of different widths");
    register_bytes = width;
  }
  if (!register_bytes) register_bytes = std::max(2u, ptx::bytes_of(type));
  return elements.size();
}

std::size_t Form::wide_sources(std::size_t number, ptx::Type type, std::uint32_t& register_bytes) {
  register_bytes = 0;
  const std::vector<ptx::Scalar> elements = elements_of(operand(number));
  // Immediates take the width of the registers beside them.
  for (const ptx::Scalar& element : elements)
    if (const auto* use = std::get_if<ptx::RegisterUse>(&element)) {
      const std::uint32_t width = ptx::bytes_of(type_of_register(use->index));
      if (register_bytes && width != register_bytes) unknown("registers of different widths");
      register_bytes = width;
    }
  if (!register_bytes) register_bytes = std::max(2u, ptx::bytes_of(type));
  for (const ptx::Scalar& element : elements) {
    std::uint32_t width = register_bytes;
    append(slot_of(element, type, false, true, &width));
  }
  return elements.size();
}

void Form::sink() { append(sink_slot()); }

void Form::address(std::size_t number) {
  const auto* address = std::get_if<ptx::Address>(&operand(number));
  if (!address) unknown("operand " + std::to_string(number) + " is no address");
  if (!address->coordinates.empty()) unknown("tensor coordinates");
  std::uint32_t width = 8;
  ptx::Type type = ptx::Type::u64;
  if (const auto* use = std::get_if<ptx::RegisterUse>(&address->base)) {
    width = ptx::bytes_of(type_of_register(use->index));
    if (width == 4)
      type = ptx::Type::u32;
    else if (width != 8)
      unknown("address in a register of " + std::to_string(width) + " bytes");
  }
  append(slot_of(address->base, type, false, false, nullptr));
  address_bytes_ = width;
  instruction_.displacement = address->offset;
}

bool Form::is_literal(std::size_t operand) const {
  if (operand >= operand_count()) return false;
  const ptx::Scalar* scalar = scalar_of(statement_.operands[operand]);
  return scalar && std::holds_alternative<ptx::Immediate>(*scalar);
}

std::uint64_t Form::literal(std::size_t number) {
  if (!is_literal(number)) unknown("operand " + std::to_string(number) + " is no literal");
  return std::get<ptx::Immediate>(*scalar_of(operand(number))).bits;
}

bool Form::is_register(std::size_t operand) const {
  if (operand >= operand_count()) return false;
  const ptx::Scalar* scalar = scalar_of(statement_.operands[operand]);
  return scalar && std::holds_alternative<ptx::RegisterUse>(*scalar);
}

bool Form::is_vector(std::size_t operand) const {
  return operand < operand_count() && std::holds_alternative<ptx::Vector>(statement_.operands[operand]);
}

ptx::Type Form::register_type(std::size_t operand) const {
  const ptx::RegisterUse* use =
      operand < operand_count() ? register_of(statement_.operands[operand]) : nullptr;
  if (!use) unknown("operand " + std::to_string(operand) + " is no register");
  return type_of_register(use->index);
}

void Form::unknown(const std::string& why) const { throw UnknownInstruction(statement_.text + ": " + why); }

void Form::finish() const {
  if (modifiers_.empty()) return;
  std::string rest;
  for (const std::string_view modifier : modifiers_) rest += " ." + std::string(modifier);
  unknown("not understood:" + rest);
}

void Form::finish_operands() const {
  const auto left = std::find(taken_.begin(), taken_.end(), false);
  if (left != taken_.end())
    unknown("operand " + std::to_string(left - taken_.begin()) + " is not understood");
}

}  // namespace emulator
