#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "instructions/decoders.h"
#include "instructions/form.h"
#include "instructions/memory_unit.h"
#include "machine/block.h"
#include "machine/launch.h"
#include "machine/watch.h"
#include "memory/address_space.h"

// Loads and stores (PTX ISA 9.7.9.8 ld, 9.7.9.10 ldu, 9.7.9.11 st, 9.7.9.15 prefetch, 9.7.9.16 applypriority, 9.7.9.17 discard).
//
// Operands of a load: results, then the address; of a store: the address, then sources. Instruction.detail: width of the
// address register in bytes.
namespace emulator {
namespace {

using Word128 = std::array<std::uint64_t, 2>;

/// Registers of the rows that hold b128 values; all other types convert by value.
template <class Register, class Element>
Register to_register(Element value) {
  if constexpr (std::is_same_v<Register, Word128> || std::is_same_v<Element, Word128>) {
    Register out{};
    std::memcpy(&out, &value, std::min(sizeof out, sizeof value));
    return out;
  } else {
    return static_cast<Register>(value);
  }
}

template <class Register>
Digest digest_of_load(Warp& warp, const Instruction& i, const MemoryAccess& m) {
  Digest digest;
  for_lanes(m.access.lanes, [&](int lane) {
    digest.add(m.access.address[static_cast<std::size_t>(lane)]);
    for (int k = 0; k < i.memory.vector; ++k) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, warp.result<Register>(i, k) + lane, std::min(sizeof bits, sizeof(Register)));
      digest.read(bits);
    }
  });
  return digest;
}

/// Element: the type in memory, signed where the register is filled with its sign. Register: the row's type.
template <class Element, class Register>
void load(Warp& warp, const Instruction& i, LaneMask lanes) {
  const int elements = i.memory.vector;
  MemoryAccess m(AccessKind::load, i, lanes);
  m.access.carries = true;
  warp.addresses(i, elements, static_cast<std::uint32_t>(i.detail), lanes, m.access.address);
  m.open(warp, i, i.memory.space);
  if (elements == 1) {
    Register* d = warp.result<Register>(i, 0);
    for_lanes(lanes, [&](int lane) {
      Element value;
      if constexpr (std::is_same_v<Element, Word128>)
        load_16(m.host[static_cast<std::size_t>(lane)], &value);
      else
        value = load_relaxed<Element>(m.host[static_cast<std::size_t>(lane)]);
      d[lane] = to_register<Register>(value);
    });
  } else {
    std::array<Register*, 8> d;
    for (int k = 0; k < elements; ++k) d[static_cast<std::size_t>(k)] = warp.result<Register>(i, k);
    for_lanes(lanes, [&](int lane) {
      alignas(32) std::array<Element, 32 / sizeof(Element)> values;
      read_bytes(m.host[static_cast<std::size_t>(lane)], values.data(), m.access.bytes);
      for (std::size_t k = 0; k < static_cast<std::size_t>(elements); ++k)
        d[k][lane] = to_register<Register>(values[k]);
    });
  }
  if (m.unwritten || warp.undefined()) [[unlikely]]
    watch::loaded(warp, i, m, std::is_signed_v<Element>, sizeof(Register));
  m.close(warp, i);
  if (i.memory.order != Order::weak) notice_spinning(warp, i, m, digest_of_load<Register>(warp, i, m));
}

template <class Element, class Register>
void store(Warp& warp, const Instruction& i, LaneMask lanes) {
  const int elements = i.memory.vector;
  MemoryAccess m(AccessKind::store, i, lanes);
  warp.addresses(i, 0, static_cast<std::uint32_t>(i.detail), lanes, m.access.address);
  if (elements == 1) {
    const Register* source = warp.source<Register>(i, 1);
    m.access.stored = reinterpret_cast<const std::byte*>(source);
    m.access.stored_stride = sizeof(Register);
    m.open(warp, i, i.memory.space);
    for_lanes(lanes, [&](int lane) {
      const auto value = to_register<Element>(source[lane]);
      if constexpr (std::is_same_v<Element, Word128>)
        store_16(m.host[static_cast<std::size_t>(lane)], &value);
      else
        store_relaxed<Element>(m.host[static_cast<std::size_t>(lane)], value);
    });
  } else {
    alignas(32) std::array<std::array<Element, 32 / sizeof(Element)>, warp_size> values;
    for (int k = 0; k < elements; ++k) {
      const Register* source = warp.source<Register>(i, 1 + k);
      for_lanes(lanes, [&](int lane) {
        values[static_cast<std::size_t>(lane)][static_cast<std::size_t>(k)] =
            to_register<Element>(source[lane]);
      });
    }
    m.access.stored = reinterpret_cast<const std::byte*>(values.data());
    m.access.stored_stride = sizeof values[0];
    m.open(warp, i, i.memory.space);
    for_lanes(lanes, [&](int lane) {
      const auto l = static_cast<std::size_t>(lane);
      write_bytes(m.host[l], values[l].data(), m.access.bytes);
    });
  }
  if (warp.undefined()) [[unlikely]]
    watch::stored(warp, i, m);
  m.close(warp, i);
}

template <bool loads, class Element, class Register>
constexpr Execute mover() {
  if constexpr (loads)
    return load<Element, Register>;
  else
    return store<Element, Register>;
}

template <bool loads, class Element>
Execute for_register(Form& form, std::uint32_t register_bytes) {
  if (register_bytes < sizeof(Element)) form.unknown("register narrower than the type");
  switch (register_bytes) {
    case 2:
      return mover<loads, Element, std::uint16_t>();
    case 4:
      return mover<loads, Element, std::uint32_t>();
    case 8:
      return mover<loads, Element, std::uint64_t>();
    case 16:
      return mover<loads, Element, Word128>();
    default:
      form.unknown("register of " + std::to_string(register_bytes) + " bytes");
  }
}

template <bool loads>
Execute for_type(Form& form, ptx::Type type, std::uint32_t register_bytes) {
  const bool sign = loads && ptx::is_signed(type);
  switch (ptx::bytes_of(type)) {
    case 1:
      return sign ? for_register<loads, std::int8_t>(form, register_bytes)
                  : for_register<loads, std::uint8_t>(form, register_bytes);
    case 2:
      return sign ? for_register<loads, std::int16_t>(form, register_bytes)
                  : for_register<loads, std::uint16_t>(form, register_bytes);
    case 4:
      return sign ? for_register<loads, std::int32_t>(form, register_bytes)
                  : for_register<loads, std::uint32_t>(form, register_bytes);
    case 8:
      return for_register<loads, std::uint64_t>(form, register_bytes);
    case 16:
      return for_register<loads, Word128>(form, register_bytes);
    default:
      form.unknown("no type that memory holds");
  }
}

/// Hints to the caches change nothing that a program can see. A cache policy is one operand more.
void take_cache_hints(Form& form, bool& policy) {
  form.take_one_of({"ca", "cg", "cs", "lu", "cv", "wb", "wt"});
  form.take_one_of(
      {"L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"});
  form.take_one_of({"L2::evict_normal", "L2::evict_first", "L2::evict_last"});
  form.take_one_of({"L2::64B", "L2::128B", "L2::256B"});
  form.take("unified");
  policy = form.take("L2::cache_hint");
}

std::uint8_t take_vector(Form& form) {
  const std::string_view vector = form.take_one_of({"v2", "v4", "v8"});
  return vector.empty() ? 1 : static_cast<std::uint8_t>(vector[1] - '0');
}

InstructionClass class_of(ptx::Space space, bool loads) {
  using enum InstructionClass;
  switch (space) {
    case ptx::Space::global:
      return loads ? load_global : store_global;
    case ptx::Space::shared:
      return loads ? load_shared : store_shared;
    case ptx::Space::local:
      return loads ? load_local : store_local;
    case ptx::Space::constant:
      return load_constant;
    case ptx::Space::param:
      return parameter;
    default:
      return generic;
  }
}

template <bool loads>
Execute decode_move(Form& form) {
  using enum ptx::Type;
  Instruction& i = form.instruction();
  take_memory_modifiers(form, Order::weak);
  if (loads && form.take("nc")) i.memory.read_only = true;
  if (loads ? i.memory.order == Order::release : i.memory.order == Order::acquire) form.unknown("order");
  if (i.memory.order == Order::acquire_release) form.unknown("order .acq_rel");
  if (!loads && i.memory.space == ptx::Space::constant) form.unknown("store to constant memory");
  bool policy = false;
  take_cache_hints(form, policy);
  i.memory.vector = take_vector(form);
  const ptx::Type type = form.take_type(
      {b8, b16, b32, b64, b128, u8, u16, u32, u64, s8, s16, s32, s64, f16, bf16, f16x2, bf16x2, f32, f64});
  i.memory.element_bytes = static_cast<std::uint8_t>(ptx::bytes_of(type));
  if (i.memory.vector * i.memory.element_bytes > 32) form.unknown("vector of more than 32 bytes");
  if (form.statement().used_bytes_mask) i.memory.used_bytes = *form.statement().used_bytes_mask;
  form.finish();
  if (form.operand_count() != (policy ? 3u : 2u)) form.unknown("number of operands");
  if (policy) form.ignore(2);

  std::uint32_t register_bytes = 0;
  std::size_t elements;
  if (loads) {
    elements = form.wide_results(0, type, register_bytes);
    form.address(1);
  } else {
    form.address(0);
    elements = form.wide_sources(1, type, register_bytes);
  }
  if (elements != i.memory.vector) form.unknown("number of elements");
  i.detail = form.address_bytes();
  i.kind = class_of(i.memory.space, loads);
  return for_type<loads>(form, type, register_bytes);
}

}  // namespace

Execute decode_ld(Form& form) { return decode_move<true>(form); }

/// ldu reads what no thread writes meanwhile; nothing else differs from ld.
Execute decode_ldu(Form& form) {
  form.instruction().memory.read_only = true;
  return decode_move<true>(form);
}

Execute decode_st(Form& form) { return decode_move<false>(form); }

/// A prefetch changes nothing that a program can see, and may name any address.
Execute decode_prefetch(Form& form) {
  form.take_one_of({"global", "local", "const", "param", "param::entry"});
  if (form.take_one_of({"L1", "L2", "L2::evict_last", "L2::evict_normal", "tensormap"}).empty())
    form.unknown("cache level");
  form.finish();
  form.address(0);
  form.instruction().kind = InstructionClass::other;
  return [](Warp&, const Instruction&, LaneMask) {};
}

namespace {

/// "[a], 128": a cache line.
void take_line(Form& form) {
  form.take_one_of({"global"});
  form.address(0);
  form.instruction().detail = form.address_bytes();
  if (form.literal(1) != 128) form.unknown("want 128 bytes");
  form.instruction().kind = InstructionClass::other;
}

}  // namespace

Execute decode_applypriority(Form& form) {
  if (form.take_one_of({"L2::evict_normal"}).empty()) form.unknown("cache level");
  take_line(form);
  return [](Warp&, const Instruction&, LaneMask) {};
}

/// The line's contents are gone: nobody has written them any more.
Execute decode_discard(Form& form) {
  if (form.take_one_of({"L2"}).empty()) form.unknown("cache level");
  take_line(form);
  return [](Warp& warp, const Instruction& i, LaneMask lanes) {
    std::array<std::uint64_t, warp_size> address;
    warp.addresses(i, 0, static_cast<std::uint32_t>(i.detail), lanes, address);
    for_lanes(lanes, [&](int lane) {
      const std::uint64_t line = address[static_cast<std::size_t>(lane)];
      if (generic_memory(warp, lane, line, 128)) AddressSpace::instance().mark_uninitialised(line, 128);
    });
  };
}

}  // namespace emulator
