#include <algorithm>
#include <cstring>

#include "instructions/decode.h"
#include "instructions/decoders.h"
#include "instructions/module.h"
#include "machine/block.h"
#include "machine/launch.h"
#include "machine/report.h"

/// Branches, calls, ends of threads (PTX ISA 9.7.12), and what stops or delays them.
namespace emulator {
namespace {

void execute_branch(Warp& warp, const Instruction& i, LaneMask lanes) { warp.branch(lanes, i.target); }

/// Calls f(value, lanes) for the lanes of each value of a row of 64-bit values.
template <class T, class F>
void for_values(const T* row, LaneMask lanes, F&& f) {
  while (lanes) {
    const T value = row[std::countr_zero(lanes)];
    LaneMask same = 0;
    for_lanes(lanes, [&](int lane) { same |= LaneMask{row[lane] == value} << lane; });
    f(value, same);
    lanes &= ~same;
  }
}

void execute_indexed_branch(Warp& warp, const Instruction& i, LaneMask lanes) {
  const auto& targets = *static_cast<const std::vector<std::uint32_t>*>(i.extra);
  std::array<std::uint32_t, warp_size> index;
  std::memcpy(index.data(), warp.source<std::uint32_t>(i, 0), sizeof index);
  // Lanes leave the running group one by one; the last ones take it along.
  for_values(index.data(), lanes, [&](std::uint32_t value, LaneMask same) {
    if (value >= targets.size()) {
      report(Severity::error, "branch-index",
             "brx.idx: index " + std::to_string(value) + " of " + std::to_string(targets.size()) + " targets",
             {&warp, std::countr_zero(same), &i});
      throw KernelFault{715};
    }
    warp.branch(same, targets[value]);
  });
}

/// Copies the lanes' parameters between two parameter areas, from places of one to places of the other.
void copy_parameters(LaneMask lanes, const std::byte* from, std::uint32_t from_stride,
                     std::uint32_t from_offset, std::byte* to, std::uint32_t to_stride,
                     std::uint32_t to_offset, std::uint32_t bytes) {
  for_lanes(lanes, [&](int lane) {
    const std::size_t l = static_cast<std::size_t>(lane);
    std::memcpy(to + l * to_stride + to_offset, from + l * from_stride + from_offset, bytes);
  });
}

void enter(Warp& warp, const Instruction& i, const CallSite& site, const Function& function, LaneMask lanes) {
  Frame& caller = warp.frame();
  if (function.parameters.size() != site.arguments.size() || function.results.size() < site.results.size()) {
    report(Severity::error, "call-signature",
           "the call and the function " + function.name + " differ in parameters",
           {&warp, std::countr_zero(lanes), &i});
    throw KernelFault{715};
  }
  Frame& frame = warp.call(i, function, lanes);
  for (std::size_t k = 0; k < site.arguments.size(); ++k)
    copy_parameters(lanes, caller.parameters.data(), caller.function->parameter_bytes,
                    site.arguments[k].offset, frame.parameters.data(), function.parameter_bytes,
                    function.parameters[k].offset,
                    std::min(site.arguments[k].bytes, function.parameters[k].bytes));
}

void execute_call(Warp& warp, const Instruction& i, LaneMask lanes) {
  const auto& site = *static_cast<const CallSite*>(i.extra);
  enter(warp, i, site, *site.function, lanes);
}

void execute_indirect_call(Warp& warp, const Instruction& i, LaneMask lanes) {
  const auto& site = *static_cast<const CallSite*>(i.extra);
  // One function at a time: the others call again when these have returned to the next instruction.
  const std::uint64_t* address = warp.source<std::uint64_t>(i, 0);
  const std::uint64_t token = address[std::countr_zero(lanes)];
  LaneMask same = 0;
  for_lanes(lanes, [&](int lane) { same |= LaneMask{address[lane] == token} << lane; });
  const Function* function = Module::function_at(token);
  if (!function) {
    char text[32];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(token));
    report(Severity::error, "call-target", "call of " + std::string(text) + ", which is no function",
           {&warp, std::countr_zero(same), &i});
    throw KernelFault{718};
  }
  if (same != lanes) warp.branch(lanes & ~same, i.index);
  enter(warp, i, site, *function, same);
}

void execute_system_call(Warp& warp, const Instruction& i, LaneMask lanes) {
  warp.block().made_progress();
  const auto& site = *static_cast<const CallSite*>(i.extra);
  Frame& frame = warp.frame();
  // The system's functions take their arguments one behind the other, each at its natural alignment.
  const auto gather = [&](const std::vector<CallSite::Copy>& places, std::vector<std::byte>& area,
                          std::vector<std::uint32_t>& offsets) {
    std::uint32_t at = 0;
    for (const CallSite::Copy& place : places) {
      at = (at + place.bytes - 1) / place.bytes * place.bytes;
      offsets.push_back(at);
      at += place.bytes;
    }
    at = (at + 15) / 16 * 16;
    area.resize(std::size_t{at} * warp_size);
    return at;
  };
  std::vector<std::byte> arguments, results;
  std::vector<std::uint32_t> argument_offsets, result_offsets;
  const std::uint32_t argument_stride = gather(site.arguments, arguments, argument_offsets);
  const std::uint32_t result_stride = gather(site.results, results, result_offsets);
  for (std::size_t k = 0; k < site.arguments.size(); ++k)
    copy_parameters(lanes, frame.parameters.data(), frame.function->parameter_bytes, site.arguments[k].offset,
                    arguments.data(), argument_stride, argument_offsets[k], site.arguments[k].bytes);
  site.system(warp, i, lanes, {arguments.data(), argument_stride}, {results.data(), result_stride});
  for (std::size_t k = 0; k < site.results.size(); ++k)
    copy_parameters(lanes, results.data(), result_stride, result_offsets[k], frame.parameters.data(),
                    frame.function->parameter_bytes, site.results[k].offset, site.results[k].bytes);
}

void execute_ret(Warp& warp, const Instruction&, LaneMask lanes) {
  Frame& frame = warp.frame();
  if (frame.caller) {
    const auto& site = *static_cast<const CallSite*>(frame.call->extra);
    Frame& caller = *frame.caller;
    for (std::size_t k = 0; k < site.results.size(); ++k)
      copy_parameters(lanes, frame.parameters.data(), frame.function->parameter_bytes,
                      frame.function->results[k].offset, caller.parameters.data(),
                      caller.function->parameter_bytes, site.results[k].offset,
                      std::min(site.results[k].bytes, frame.function->results[k].bytes));
  }
  warp.leave(lanes);
}

void execute_exit(Warp& warp, const Instruction&, LaneMask lanes) { warp.exit(lanes); }

void execute_trap(Warp& warp, const Instruction& i, LaneMask lanes) {
  report(Severity::error, "trap", "the kernel executes " + i.statement->opcode,
         {&warp, std::countr_zero(lanes), &i});
  throw KernelFault{719};
}

void execute_yield(Warp& warp, const Instruction&, LaneMask) { warp.yield(); }
void execute_nothing(Warp&, const Instruction&, LaneMask) {}
void execute_dependency_wait(Warp& warp, const Instruction& i, LaneMask) {
  if (warp.block().launch().early()) warp.wait_at(i);
}

std::vector<CallSite::Copy> parameters_of(StatementForm& form, std::size_t operand) {
  std::vector<CallSite::Copy> places;
  const auto* list = std::get_if<ptx::List>(&form.operand(operand));
  if (!list) form.unknown("no list of parameters");
  for (const ptx::Scalar& element : list->elements) {
    const auto* use = std::get_if<ptx::SymbolUse>(&element);
    const auto place = use ? form.parameter(use->name) : std::nullopt;
    if (!place) form.unknown("argument or result that is no .param variable");
    places.push_back(*place);
  }
  return places;
}

}  // namespace

Execute decode_bra(Form& form) {
  form.take("uni");
  form.instruction().kind = InstructionClass::control;
  auto& statement = static_cast<StatementForm&>(form);
  form.instruction().target = statement.label(0);
  statement.branches();
  return execute_branch;
}

Execute decode_brx(Form& form) {
  form.take("idx");
  form.take("uni");
  form.instruction().kind = InstructionClass::control;
  auto& statement = static_cast<StatementForm&>(form);
  form.source(0, ptx::Type::u32);
  const auto* scalar = std::get_if<ptx::Scalar>(&form.operand(1));
  const auto* list = scalar ? std::get_if<ptx::SymbolUse>(scalar) : nullptr;
  if (!list) form.unknown("no list of targets");
  const ptx::Function& function = statement.source_function();
  const auto found = function.branch_targets.find(list->name);
  if (found == function.branch_targets.end()) form.unknown("no .branchtargets " + list->name);
  auto targets = std::make_shared<std::vector<std::uint32_t>>();
  for (const std::string& name : found->second) {
    const auto at = std::find(function.labels.begin(), function.labels.end(), name);
    if (at == function.labels.end()) form.unknown("no label " + name);
    targets->push_back(static_cast<std::uint32_t>(at - function.labels.begin()));
  }
  statement.keep(targets);
  statement.branches();
  return execute_indexed_branch;
}

Execute decode_call(Form& form) {
  form.take("uni");
  form.instruction().kind = InstructionClass::control;
  auto& statement = static_cast<StatementForm&>(form);
  if (form.operand_count() < 3) form.unknown("want results, function, arguments");
  auto site = std::make_shared<CallSite>();
  site->results = parameters_of(statement, 0);
  site->arguments = parameters_of(statement, 2);
  Execute execute = execute_call;
  const auto* callee = std::get_if<ptx::Scalar>(&form.operand(1));
  if (const auto* use = callee ? std::get_if<ptx::SymbolUse>(callee) : nullptr) {
    site->name = use->name;
    site->function = statement.names().function(use->name);
    if (!site->function) {
      site->system = find_system_call(use->name);
      if (!site->system) form.unknown("no unit defines the function " + use->name);
      execute = execute_system_call;
    }
  } else {
    form.source(1, ptx::Type::u64);
    if (form.operand_count() > 3) form.ignore(3);  // the prototype: the function itself says what it takes
    execute = execute_indirect_call;
  }
  statement.keep(site);
  return execute;
}

Execute decode_ret(Form& form) {
  form.take("uni");
  form.instruction().kind = InstructionClass::control;
  return execute_ret;
}

Execute decode_exit(Form& form) {
  form.instruction().kind = InstructionClass::control;
  return execute_exit;
}

Execute decode_trap(Form& form) {
  form.instruction().kind = InstructionClass::control;
  return execute_trap;
}

Execute decode_brkpt(Form& form) { return decode_trap(form); }

Execute decode_nanosleep(Form& form) {
  form.take("u32");
  form.ignore(0);  // any time may pass
  form.instruction().kind = InstructionClass::control;
  return execute_yield;
}

Execute decode_nothing(Form& form) {
  form.take("mask");
  form.ignore(0);
  form.instruction().kind = InstructionClass::other;
  return execute_nothing;
}

/// The emulator decides when a dependent kernel begins (Launch::run_early), so that .launch_dependents does nothing.
Execute decode_griddepcontrol(Form& form) {
  const std::string_view what = form.take_one_of({"wait", "launch_dependents"});
  if (what.empty()) form.unknown("want .wait or .launch_dependents");
  form.instruction().kind = InstructionClass::fence;
  return what == "wait" ? execute_dependency_wait : execute_nothing;
}

}  // namespace emulator
