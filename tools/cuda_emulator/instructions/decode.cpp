#include "instructions/decode.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <stdexcept>

#include "instructions/special_registers.h"
#include "machine/block.h"
#include "machine/launch.h"
#include "machine/report.h"
#include "machine/rows.h"
#include "machine/watch.h"

namespace emulator {
namespace {

using ptx::Type;

std::uint32_t align(std::uint32_t value, std::uint32_t alignment) {
  alignment = std::max(alignment, 1u);
  return (value + alignment - 1) / alignment * alignment;
}

/// Bytes of a lane in a row: predicates (0) have one bit a lane, 8-bit values lie in 16-bit registers.
std::uint32_t width_of(Type type) { return type == Type::pred ? 0 : std::max(ptx::bytes_of(type), 2u); }

void execute_unknown(Warp& warp, const Instruction& i, LaneMask lanes) {
  report(Severity::error, "unknown-instruction", *static_cast<const std::string*>(i.extra),
         {&warp, std::countr_zero(lanes), &i});
  throw KernelFault{715};
}
void execute_special(Warp& warp, const Instruction& i, LaneMask lanes) {
  static_cast<const SpecialRegister*>(i.extra)->read(warp, warp.result<std::byte>(i, 0), lanes);
}
/// Address of a .local variable of the running frame.
void execute_local_address(Warp& warp, const Instruction& i, LaneMask lanes) {
  const std::uint64_t value = warp.frame().local_base + i.detail;
  if (i.memory.element_bytes == 4)
    for_lanes(lanes,
              [&](int lane) { warp.result<std::uint32_t>(i, 0)[lane] = static_cast<std::uint32_t>(value); });
  else
    for_lanes(lanes, [&](int lane) { warp.result<std::uint64_t>(i, 0)[lane] = value; });
}
void execute_dynamic_shared(Warp& warp, const Instruction& i, LaneMask lanes) {
  const std::uint64_t value =
      reserved_shared + warp.block().launch().kernel().dynamic_shared_offset + i.detail;
  if (i.memory.element_bytes == 4)
    for_lanes(lanes,
              [&](int lane) { warp.result<std::uint32_t>(i, 0)[lane] = static_cast<std::uint32_t>(value); });
  else
    for_lanes(lanes, [&](int lane) { warp.result<std::uint64_t>(i, 0)[lane] = value; });
}

}  // namespace

class FunctionDecoder {
 public:
  FunctionDecoder(Function& function, Names& names)
      : function_(function), source_(*function.source), names_(names) {
    for (const auto& declared : source_.registers) widths_.push_back(width_of(declared.type));
    for (const ptx::Variable& v : source_.variables) variables_.emplace(v.name, &v);
    for (const ptx::Variable& v : source_.variables)
      if (v.space == ptx::Space::local) {
        function_.local_bytes = align(function_.local_bytes, v.alignment);
        local_.emplace(v.name, function_.local_bytes);
        function_.local_bytes += static_cast<std::uint32_t>(v.bytes);
      }
    if (source_.entry) {
      // Parameters of a kernel lie in the launch's block.
      for (std::size_t k = 0; k < source_.parameters.size(); ++k)
        kernel_parameters_.emplace(source_.parameters[k].name, function_.parameters[k].offset);
    } else {
      for (std::size_t k = 0; k < source_.parameters.size(); ++k)
        parameters_.emplace(source_.parameters[k].name,
                            CallSite::Copy{function_.parameters[k].offset, function_.parameters[k].bytes});
      for (std::size_t k = 0; k < source_.results.size(); ++k)
        parameters_.emplace(source_.results[k].name,
                            CallSite::Copy{function_.results[k].offset, function_.results[k].bytes});
    }
    for (const ptx::Variable& v : source_.variables)
      if (v.space == ptx::Space::param) {
        function_.parameter_bytes = align(function_.parameter_bytes, std::max(8u, v.alignment));
        parameters_.emplace(v.name,
                            CallSite::Copy{function_.parameter_bytes, static_cast<std::uint32_t>(v.bytes)});
        function_.parameter_bytes += static_cast<std::uint32_t>(v.bytes);
      }
    function_.parameter_bytes = align(function_.parameter_bytes, 16);
  }

  void run() {
    std::vector<std::uint32_t> start(source_.statements.size() + 1);
    for (std::size_t k = 0; k < source_.statements.size(); ++k) {
      start[k] = static_cast<std::uint32_t>(function_.code.size());
      decode(source_.statements[k]);
    }
    start.back() = static_cast<std::uint32_t>(function_.code.size());
    end_.opcode = "ret";
    end_.text = "(end of the function)";
    auto end = std::make_shared<ptx::Statement>(end_);
    function_.extras.push_back(end);
    decode(*end);
    const auto target = [&](std::uint32_t label) { return start[source_.label_statement.at(label)]; };
    auto pool = std::make_unique<Slot[]>(slots_.size());
    std::copy(slots_.begin(), slots_.end(), pool.get());
    for (std::size_t k = 0; k < function_.code.size(); ++k) {
      Instruction& i = function_.code[k];
      i.index = static_cast<std::uint32_t>(k);
      i.operands = pool.get() + first_slot_[k];
      if (i.detail == StatementForm::branch_mark) {
        if (i.extra)
          for (std::uint32_t& label : *static_cast<std::vector<std::uint32_t>*>(const_cast<void*>(i.extra)))
            label = target(label);
        else
          i.target = target(i.target);
        i.detail = 0;
      }
    }
    assign_rows(function_, {pool.get(), slots_.size()}, widths_);
    function_.operand_pool.push_back(std::move(pool));
  }

  Slot slot_of(const ptx::Scalar& scalar, Type type, bool written, bool any_width, std::uint32_t* width,
               const Form& form) {
    if (const auto* use = std::get_if<ptx::RegisterUse>(&scalar)) {
      if (use->negated) form.unknown("negated register");
      const Type declared = source_.registers[use->index].type;
      const std::uint32_t have = width_of(declared), want = width_of(type);
      if ((have == 0) != (want == 0))
        form.unknown(source_.registers[use->index].name + " is " + (have ? "no" : "a") + " predicate");
      if (!any_width && have != want)
        form.unknown(source_.registers[use->index].name + " has " + std::to_string(have) + " bytes, want " +
                     std::to_string(want));
      if (any_width && have < ptx::bytes_of(type))
        form.unknown(source_.registers[use->index].name + " is narrower than ." +
                     std::string(ptx::name_of(type)));
      if (width) *width = have;
      return slot_of_register(use->index, have, written);
    }
    if (std::holds_alternative<ptx::Sink>(scalar)) {
      if (!written) form.unknown("_ is read");
      return sink_slot;
    }
    if (written) form.unknown("result is no register");
    const std::uint32_t value_width = any_width && width && *width ? *width : width_of(type);
    if (const auto* immediate = std::get_if<ptx::Immediate>(&scalar)) {
      if (width) *width = value_width;
      return constant(type, value_width, *immediate);
    }
    if (const auto* special = std::get_if<ptx::SpecialUse>(&scalar)) {
      const SpecialRegister* entry = find_special_register(special->name);
      if (!entry) form.unknown("special register " + special->name);
      const std::uint32_t have = width_of(entry->type);
      // A 32-bit special register may be read as 64 bits (older PTX) only by cvt; mov wants equal widths.
      if (have != value_width && !(any_width && have >= ptx::bytes_of(type)))
        form.unknown(special->name + " has " + std::to_string(have) + " bytes, want " +
                     std::to_string(value_width));
      if (width) *width = have;
      Instruction i;
      i.execute = execute_special;
      i.kind = InstructionClass::move;
      i.extra = entry;
      return fetch_before(i, have);
    }
    const auto& use = std::get<ptx::SymbolUse>(scalar);
    if (width) *width = value_width;
    const auto at_run_time = [&](Execute execute, std::uint64_t detail) {
      Instruction i;
      i.execute = execute;
      i.kind = InstructionClass::move;
      i.detail = detail;
      i.memory.element_bytes = static_cast<std::uint8_t>(value_width);
      return fetch_before(i, value_width);
    };
    const std::uint64_t offset = static_cast<std::uint64_t>(use.offset);
    if (const auto found = local_.find(use.name); found != local_.end())
      return at_run_time(execute_local_address, found->second + offset);
    if (const auto found = kernel_parameters_.find(use.name); found != kernel_parameters_.end())
      return constant(type, value_width, {parameter_window + found->second + offset, Type::none});
    if (const auto found = parameters_.find(use.name); found != parameters_.end())
      return constant(type, value_width, {found->second.offset + offset, Type::none});
    const auto own = variables_.find(use.name);
    Symbol symbol;
    try {
      symbol = own != variables_.end() && own->second->space == ptx::Space::shared
                   ? names_.shared_variable(use.name)
                   : names_.symbol(use.name);
    } catch (const std::runtime_error& error) {
      form.unknown(error.what());
    }
    if (symbol.kind == Symbol::Kind::dynamic_shared) return at_run_time(execute_dynamic_shared, offset);
    return constant(type, value_width, {symbol.value + offset, Type::none});
  }

  Slot constant(Type type, std::uint32_t width, const ptx::Immediate& immediate) {
    std::uint64_t bits = immediate.bits;
    if (type == Type::f32 && immediate.floating == Type::f64)
      bits = std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
    else if (type == Type::f64 && immediate.floating == Type::f32)
      bits = std::bit_cast<std::uint64_t>(
          static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits))));
    if (width == 0) bits = bits ? all_lanes : 0;
    if (width != 0 && width < 8) bits &= (std::uint64_t{1} << (8 * width)) - 1;
    const auto [found, made] = constants_.try_emplace({width, bits}, 0);
    if (made) {
      std::vector<std::byte>& area = function_.constants;
      area.resize(align(static_cast<std::uint32_t>(area.size()), 64));
      found->second = static_cast<std::uint32_t>(area.size());
      area.resize(area.size() + row_bytes(width));
      std::byte* row = area.data() + found->second;
      if (width == 0)
        std::memcpy(row, &bits, 4);
      else
        for (std::size_t lane = 0; lane < warp_size; ++lane)
          std::memcpy(row + lane * width, &bits, std::min<std::size_t>(width, 8));
    }
    return {~static_cast<std::int32_t>(found->second), static_cast<std::uint8_t>(width)};
  }

  void append(Slot slot) { current_.push_back(slot); }
  Function& function() { return function_; }
  const ptx::Function& source() const { return source_; }
  Names& names() { return names_; }
  std::optional<CallSite::Copy> parameter(std::string_view name) const {
    const auto found = parameters_.find(std::string(name));
    if (found == parameters_.end()) return {};
    return found->second;
  }

 private:
  /// Adds an instruction before the one that is being decoded: it fetches what that one reads into a register of its own.
  Slot fetch_before(const Instruction& i, std::uint32_t width) {
    const auto number = static_cast<std::uint32_t>(widths_.size());
    widths_.push_back(width);
    before_.emplace_back(i, std::vector{slot_of_register(number, width, true)});
    return slot_of_register(number, width, false);
  }

  void emit(Instruction i, const std::vector<Slot>& slots, const ptx::Statement& statement) {
    i.statement = &statement;
    i.operand_count = static_cast<std::uint16_t>(slots.size());
    if (statement.guard) {
      i.guarded = true;
      i.guard_negated = statement.guard->negated;
      i.guard = slot_of_register(statement.guard->index, 0, false);
    }
    first_slot_.push_back(slots_.size());
    slots_.insert(slots_.end(), slots.begin(), slots.end());
    function_.code.push_back(i);
  }

  void decode(const ptx::Statement& statement) {
    Instruction i;
    current_.clear();
    before_.clear();
    StatementForm form(statement, i, *this);
    try {
      const InstructionEntry* entry = find_instruction(statement.opcode, group_of(statement));
      if (!entry) form.unknown("no such instruction in the table");
      i.execute = entry->decode(form);
      form.finish();
      form.finish_operands();
      i.undefined = watch::undefined_rule(statement);
    } catch (const UnknownInstruction& error) {
      i = Instruction{};
      current_.clear();
      before_.clear();
      i.execute = execute_unknown;
      form.keep(std::make_shared<std::string>("unknown instruction: " + std::string(error.what())));
    }
    for (const auto& [fetch, slots] : before_) emit(fetch, slots, statement);
    emit(i, current_, statement);
  }

  Function& function_;
  const ptx::Function& source_;
  Names& names_;
  std::vector<std::uint32_t> widths_;  ///< of each register of the source, then of those that fetches fill
  std::map<std::string, const ptx::Variable*> variables_;
  std::map<std::string, std::uint32_t> local_, kernel_parameters_;
  std::map<std::string, CallSite::Copy> parameters_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> constants_;
  std::vector<Slot> slots_, current_;
  std::vector<std::size_t> first_slot_;
  std::vector<std::pair<Instruction, std::vector<Slot>>> before_;
  ptx::Statement end_;
};

StatementForm::StatementForm(const ptx::Statement& statement, Instruction& instruction,
                             FunctionDecoder& decoder)
    : Form(statement, instruction), decoder_(decoder) {}

void StatementForm::constant(ptx::Type type, std::uint64_t bits) {
  append(decoder_.constant(type, width_of(type), {bits, Type::none}));
}
void StatementForm::append(Slot slot) { decoder_.append(slot); }
Slot StatementForm::slot_of(const ptx::Scalar& scalar, ptx::Type type, bool written, bool any_width,
                            std::uint32_t* width) {
  return decoder_.slot_of(scalar, type, written, any_width, width, *this);
}
Slot StatementForm::sink_slot() { return emulator::sink_slot; }
ptx::Type StatementForm::type_of_register(std::uint32_t index) const {
  return decoder_.source().registers[index].type;
}
Names& StatementForm::names() { return decoder_.names(); }
const ptx::Function& StatementForm::source_function() const { return decoder_.source(); }
std::optional<CallSite::Copy> StatementForm::parameter(std::string_view name) const {
  return decoder_.parameter(name);
}
void StatementForm::keep(std::shared_ptr<void> object) {
  instruction_.extra = object.get();
  decoder_.function().extras.push_back(std::move(object));
}
std::uint32_t StatementForm::label(std::size_t number) {
  const auto* use = std::get_if<ptx::LabelUse>(&operand(number));
  if (!use) unknown("no label");
  return use->label;
}

void declare_function(Function& function, const ptx::Function& source, const ptx::Module& module) {
  function.name = source.name;
  function.entry = source.entry;
  function.source = &source;
  function.module = &module;
  std::uint32_t at = 0;
  const auto place = [&](const ptx::Parameter& p) {
    at = align(at, std::max(p.alignment, 1u));
    const ParameterPlace where{at, p.bytes};
    at += p.bytes;
    return where;
  };
  for (const ptx::Parameter& p : source.parameters) function.parameters.push_back(place(p));
  for (const ptx::Parameter& p : source.results) function.results.push_back(place(p));
  function.parameter_bytes = source.entry ? 0 : align(at, 16);
}

void decode_function(Function& function, Names& names) { FunctionDecoder(function, names).run(); }

}  // namespace emulator
