#include <cstring>

#include "instructions/decoders.h"
#include "instructions/elementwise.h"
#include "machine/block.h"
#include "machine/launch.h"
#include "machine/report.h"

/// Moves, packing and unpacking, addresses (PTX ISA 9.7.9.1, 9.7.9.19, 9.7.9.20, 9.7.16).
namespace emulator {
namespace {

using ptx::Type;

/// d = {a0, a1, ...} or {d0, d1, ...} = a: the row of a wide value and rows of its parts, low part first.
template <class Wide, class Part>
void execute_pack(Warp& warp, const Instruction& i, LaneMask lanes) {
  constexpr int parts = sizeof(Wide) / sizeof(Part);
  for_lanes(lanes, [&](int lane) {
    Part values[parts];
    for (int k = 0; k < parts; ++k) values[k] = warp.source<Part>(i, 1 + k)[lane];
    std::memcpy(warp.result<Wide>(i, 0) + lane, values, sizeof values);
  });
}
template <class Wide, class Part>
void execute_unpack(Warp& warp, const Instruction& i, LaneMask lanes) {
  constexpr int parts = sizeof(Wide) / sizeof(Part);
  for_lanes(lanes, [&](int lane) {
    Part values[parts];
    std::memcpy(values, warp.source<Wide>(i, parts) + lane, sizeof values);
    for (int k = 0; k < parts; ++k) warp.result<Part>(i, k)[lane] = values[k];
  });
}

struct Wide128 {
  std::uint64_t low, high;
};

Type bits_type(std::uint32_t bytes) {
  return bytes == 2 ? Type::b16 : bytes == 4 ? Type::b32 : bytes == 8 ? Type::b64 : Type::b128;
}

/// Packed moves name only the type of the whole; the number of parts gives theirs.
Execute decode_packed(Form& form, Type type, bool unpacks) {
  const std::size_t vector = unpacks ? 0 : 1;
  const auto& elements = std::get<ptx::Vector>(form.statement().operands[vector]).elements;
  const std::uint32_t bytes = ptx::bytes_of(type);
  const std::uint32_t part = bytes / static_cast<std::uint32_t>(elements.size());
  if (unpacks) {
    form.results(0, bits_type(part));
    form.source(1, bits_type(bytes));
  } else {
    form.result(0, bits_type(bytes));
    form.sources(1, bits_type(part));
  }
  if (bytes == 4 && part == 2)
    return unpacks ? execute_unpack<std::uint32_t, std::uint16_t>
                   : execute_pack<std::uint32_t, std::uint16_t>;
  if (bytes == 8 && part == 4)
    return unpacks ? execute_unpack<std::uint64_t, std::uint32_t>
                   : execute_pack<std::uint64_t, std::uint32_t>;
  if (bytes == 8 && part == 2)
    return unpacks ? execute_unpack<std::uint64_t, std::uint16_t>
                   : execute_pack<std::uint64_t, std::uint16_t>;
  if (bytes == 16 && part == 8)
    return unpacks ? execute_unpack<Wide128, std::uint64_t> : execute_pack<Wide128, std::uint64_t>;
  if (bytes == 16 && part == 4)
    return unpacks ? execute_unpack<Wide128, std::uint32_t> : execute_pack<Wide128, std::uint32_t>;
  form.unknown("parts of " + std::to_string(part) + " bytes");
}

void execute_move_predicate(Warp& warp, const Instruction& i, LaneMask lanes) {
  const LaneMask value = warp.predicate(i, 1);
  warp.set_predicate(i, 0, lanes, i.detail ? ~value : value);
}

template <std::uint64_t window>
void execute_to_generic(Warp& warp, const Instruction& i, LaneMask lanes) {
  const std::uint64_t* a = warp.source<std::uint64_t>(i, 1);
  std::uint64_t* d = warp.result<std::uint64_t>(i, 0);
  for_lanes(lanes, [&](int lane) { d[lane] = a[lane] | window; });
}

template <std::uint64_t window>
void execute_from_generic(Warp& warp, const Instruction& i, LaneMask lanes) {
  const std::uint64_t* a = warp.source<std::uint64_t>(i, 1);
  std::uint64_t* d = warp.result<std::uint64_t>(i, 0);
  for_lanes(lanes, [&](int lane) {
    d[lane] = (a[lane] & window_mask) == window ? a[lane] & ~window_mask : a[lane];
  });
}

Execute copy64() {
  return elementwise<std::uint64_t, std::uint64_t>([](std::uint64_t a) { return a; });
}

/// Whether generic addresses lie in a window. `detail`: the state space; constant memory is told from global memory by its
/// allocation.
void execute_isspacep(Warp& warp, const Instruction& i, LaneMask lanes) {
  const std::uint64_t* a = warp.source<std::uint64_t>(i, 1);
  const auto wanted = static_cast<ptx::Space>(i.detail);
  LaneMask holds = 0;
  for_lanes(lanes, [&](int lane) {
    ptx::Space space = space_of(a[lane]);
    if (space == ptx::Space::global) {
      const Allocation* allocation = AddressSpace::instance().find(a[lane]);
      if (allocation && allocation->read_only) space = ptx::Space::constant;
    }
    holds |= LaneMask{space == wanted} << lane;
  });
  warp.set_predicate(i, 0, lanes, holds);
}

void execute_alloca(Warp& warp, const Instruction& i, LaneMask lanes) {
  const std::uint64_t* bytes = warp.source<std::uint64_t>(i, 1);
  std::uint64_t most = 0;
  for_lanes(lanes, [&](int lane) { most = std::max(most, bytes[lane]); });
  if (most > (512u << 10)) {
    report(Severity::error, "stack-overflow", "alloca of " + std::to_string(most) + " bytes",
           {&warp, std::countr_zero(lanes), &i});
    throw KernelFault{714};
  }
  const std::uint64_t at =
      warp.local_alloca(static_cast<std::uint32_t>(most), static_cast<std::uint32_t>(i.detail));
  for_lanes(lanes, [&](int lane) { warp.result<std::uint64_t>(i, 0)[lane] = at; });
}

}  // namespace

Execute decode_mov(Form& form) {
  const Type type = form.take_type();
  form.instruction().kind = InstructionClass::move;
  if (type == Type::pred) {
    bool negated = false;
    form.result_predicate(0);
    form.source_predicate(1, negated);
    form.instruction().detail = negated;
    return execute_move_predicate;
  }
  if (type == Type::none) form.unknown("no type");
  if (form.is_vector(0)) return decode_packed(form, type, true);
  if (form.is_vector(1)) return decode_packed(form, type, false);
  form.result(0, type);
  form.source(1, type);
  switch (ptx::bytes_of(type)) {
    case 2:
      return elementwise<std::uint16_t, std::uint16_t>([](std::uint16_t a) { return a; });
    case 4:
      return elementwise<std::uint32_t, std::uint32_t>([](std::uint32_t a) { return a; });
    case 8:
      return copy64();
    case 16:
      return elementwise<Wide128, Wide128>([](Wide128 a) { return a; });
    default:
      form.unknown("type of " + std::to_string(ptx::bytes_of(type)) + " bytes");
  }
}

Execute decode_cvta(Form& form) {
  const bool to = form.take("to");
  const std::string_view space =
      form.take_one_of({"global", "shared", "local", "const", "param", "shared::cta", "param::entry"});
  form.take_type({Type::u64});
  form.instruction().kind = InstructionClass::integer;
  form.result(0, Type::u64);
  form.source(1, Type::u64);
  if (space == "shared" || space == "shared::cta")
    return to ? execute_from_generic<shared_window> : execute_to_generic<shared_window>;
  if (space == "local") return to ? execute_from_generic<local_window> : execute_to_generic<local_window>;
  if (space.empty()) form.unknown("no state space");
  // Global and constant addresses are generic ones; parameters of kernels have their window from the start.
  return copy64();
}

Execute decode_isspacep(Form& form) {
  const std::string_view space = form.take_one_of(
      {"global", "shared", "local", "const", "param", "shared::cta", "shared::cluster", "param::entry"});
  form.instruction().kind = InstructionClass::compare;
  form.result_predicate(0);
  form.source(1, Type::u64);
  form.instruction().detail = static_cast<std::uint64_t>(space == "global"             ? ptx::Space::global
                                                         : space == "local"            ? ptx::Space::local
                                                         : space == "const"            ? ptx::Space::constant
                                                         : space.starts_with("param")  ? ptx::Space::param
                                                         : space.starts_with("shared") ? ptx::Space::shared
                                                                                       : ptx::Space::none);
  if (space.empty()) form.unknown("no state space");
  return execute_isspacep;
}

Execute decode_alloca(Form& form) {
  form.take_type({Type::u64});
  form.instruction().kind = InstructionClass::other;
  form.result(0, Type::u64);
  form.source(1, Type::u64);
  form.instruction().detail = form.operand_count() > 2 ? form.literal(2) : 16;
  return execute_alloca;
}

/// The stack pointer of this machine falls back by itself when a function returns.
Execute decode_stacksave(Form& form) {
  form.take_type({Type::u64});
  form.instruction().kind = InstructionClass::other;
  form.result(0, Type::u64);
  return [](Warp& warp, const Instruction& i, LaneMask lanes) {
    for_lanes(lanes, [&](int lane) { warp.result<std::uint64_t>(i, 0)[lane] = 0; });
  };
}

Execute decode_stackrestore(Form& form) {
  form.take_type({Type::u64});
  form.instruction().kind = InstructionClass::other;
  form.source(0, Type::u64);
  return [](Warp&, const Instruction&, LaneMask) {};
}

}  // namespace emulator
