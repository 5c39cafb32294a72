#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "instructions/decoders.h"
#include "instructions/form.h"
#include "instructions/half.h"
#include "instructions/memory_unit.h"
#include "machine/block.h"
#include "machine/launch.h"
#include "machine/report.h"
#include "machine/watch.h"

// Atomics and fences (PTX ISA 9.7.13.5 membar and fence, 9.7.13.6 atom, 9.7.13.7 red).
//
// Operands of an atomic: results (sinks for red), the address, sources (vector elements one by one), for cas the
// new value. Instruction.detail: width of the address register in bytes.
namespace emulator {
namespace {

using Word128 = unsigned __int128;

/// Replaces the value at the place by f(value) and returns the old one; indivisible among host threads.
template <class T, class F>
T update(std::byte* at, F&& f) {
  T* const place = reinterpret_cast<T*>(at);
  T old = __atomic_load_n(place, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(place, &old, f(old), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}

bool exchange_16(std::byte* at, Word128& expected, Word128 desired) {
  bool done;
  auto low = static_cast<std::uint64_t>(expected), high = static_cast<std::uint64_t>(expected >> 64);
  asm volatile("lock cmpxchg16b %1"
               : "=@ccz"(done), "+m"(*reinterpret_cast<Word128*>(at)), "+a"(low), "+d"(high)
               : "b"(static_cast<std::uint64_t>(desired)), "c"(static_cast<std::uint64_t>(desired >> 64))
               : "memory");
  expected = Word128{high} << 64 | low;
  return done;
}

template <class F>
Word128 update_16(std::byte* at, F&& f) {
  Word128 old = 0;
  while (!exchange_16(at, old, f(old))) {
  }
  return old;
}

// What the operations make of the old value a, the operand b and, for cas, the new value c. `global`: the place lies in
// global memory.

struct Add {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};
struct And {
  template <class T>
  T operator()(T a, T b) const {
    return a & b;
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return a | b;
  }
};
struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return a ^ b;
  }
};
struct Exchange {
  template <class T>
  T operator()(T, T b) const {
    return b;
  }
};
struct Minimum {
  template <class T>
  T operator()(T a, T b) const {
    return std::min(a, b);
  }
};
struct Maximum {
  template <class T>
  T operator()(T a, T b) const {
    return std::max(a, b);
  }
};
struct Increment {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return a >= b ? 0 : a + 1; }
};
struct Decrement {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return a == 0 || a > b ? b : a - 1; }
};

float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

/// add.f32: subnormal operands and results become zeros of their sign in global memory, not in shared memory.
std::uint32_t add_f32(std::uint32_t a, std::uint32_t b, bool global) {
  float x = std::bit_cast<float>(a), y = std::bit_cast<float>(b);
  if (global) x = flushed(x), y = flushed(y);
  const float sum = x + y;
  if (sum != sum) return 0x7fff'ffff;
  return std::bit_cast<std::uint32_t>(global ? flushed(sum) : sum);
}
std::uint64_t add_f64(std::uint64_t a, std::uint64_t b, bool) {
  return std::bit_cast<std::uint64_t>(std::bit_cast<double>(a) + std::bit_cast<double>(b));
}

enum class HalfOperation { add, min, max };

template <bool bfloat>
float from_half(std::uint16_t bits) {
  return bfloat ? bfloat_to_float(bits) : half_to_float(bits);
}

/// One NaN gives way to the other operand, and -0 < +0.
template <bool bfloat, HalfOperation operation>
std::uint16_t combine_half(std::uint16_t a, std::uint16_t b, bool) {
  const float x = from_half<bfloat>(a), y = from_half<bfloat>(b);
  if constexpr (operation == HalfOperation::add) {
    // The sum of two is exact in f32 but for bits that cannot change its rounding (11 + 2 < 24 bits).
    return bfloat ? float_to_bfloat(x + y) : float_to_half(x + y);
  } else {
    constexpr std::uint16_t nan = 0x7fff;
    if (x != x) return y != y ? nan : b;
    if (y != y) return a;
    constexpr bool min = operation == HalfOperation::min;
    if (x == y) return std::signbit(x) == min ? a : b;
    return (x < y) == min ? a : b;
  }
}
template <bool bfloat, HalfOperation operation>
std::uint32_t combine_pair(std::uint32_t a, std::uint32_t b, bool global) {
  const std::uint32_t low =
      combine_half<bfloat, operation>(static_cast<std::uint16_t>(a), static_cast<std::uint16_t>(b), global);
  const std::uint32_t high = combine_half<bfloat, operation>(static_cast<std::uint16_t>(a >> 16),
                                                             static_cast<std::uint16_t>(b >> 16), global);
  return high << 16 | low;
}

/// Combines T(T old, T operand) or T(T old, T operand, bool global).
template <class F, class T>
T combine(F f, T a, T b, [[maybe_unused]] bool global) {
  if constexpr (std::is_invocable_v<F, T, T, bool>)
    return f(a, b, global);
  else
    return f(a, b);
}

/// Runs `lane_operation(lane, host, global, digest)` for the lanes in order; it adds operands and what it read to the digest, and returns
/// whether it changed memory.
template <class F>
void execute_atomic(Warp& warp, const Instruction& i, LaneMask lanes, int address_operand,
                    F&& lane_operation) {
  MemoryAccess m(AccessKind::atomic, i, lanes);
  warp.addresses(i, address_operand, static_cast<std::uint32_t>(i.detail), lanes, m.access.address);
  m.access.replaces = i.memory.exchange && i.results_unused;
  m.open(warp, i, i.memory.space);
  if (lanes & ~(m.global | m.shared)) [[unlikely]] {
    report(Severity::error, "wrong-window", "atomic access to local memory or parameters",
           {&warp, std::countr_zero(lanes & ~(m.global | m.shared)), &i});
    throw KernelFault{717};
  }
  Digest digest;
  m.changes = false;
  for_lanes(lanes, [&](int lane) {
    const auto l = static_cast<std::size_t>(lane);
    digest.add(m.access.address[l]);
    m.changes |= lane_operation(lane, m.host[l], (m.global >> lane & 1) != 0, digest);
  });
  m.close(warp, i);
  notice_spinning(warp, i, m, digest);
}

/// d = old, place = F(old, b), for each element of a vector by itself.
template <class T, auto f>
void modify(Warp& warp, const Instruction& i, LaneMask lanes) {
  const int elements = i.memory.vector;
  execute_atomic(warp, i, lanes, elements, [&](int lane, std::byte* host, bool global, Digest& digest) {
    // All sources are read before a result is written: they may be the same registers.
    std::array<T, 8> operand;
    for (int k = 0; k < elements; ++k)
      operand[static_cast<std::size_t>(k)] = warp.source<T>(i, elements + 1 + k)[lane];
    bool changed = false;
    for (int k = 0; k < elements; ++k) {
      const T b = operand[static_cast<std::size_t>(k)];
      const T old = update<T>(host + static_cast<std::size_t>(k) * sizeof(T),
                              [&](T a) { return combine(f, a, b, global); });
      warp.result<T>(i, k)[lane] = old;
      changed |= combine(f, old, b, global) != old;
      digest.read(static_cast<std::uint64_t>(old));
      digest.add(static_cast<std::uint64_t>(b));
    }
    return changed;
  });
}

template <class T>
void compare_and_swap(Warp& warp, const Instruction& i, LaneMask lanes) {
  execute_atomic(warp, i, lanes, 1, [&](int lane, std::byte* host, bool, Digest& digest) {
    T old = warp.source<T>(i, 2)[lane];
    const T desired = warp.source<T>(i, 3)[lane];
    const bool exchanged = __atomic_compare_exchange_n(reinterpret_cast<T*>(host), &old, desired, false,
                                                       __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    warp.result<T>(i, 0)[lane] = old;
    digest.read(static_cast<std::uint64_t>(old));
    return exchanged && desired != old;
  });
}

// Rows of b128 are aligned to 8 bytes at least.
Word128 row_128(const std::byte* row, int lane) {
  Word128 value;
  std::memcpy(&value, row + static_cast<std::size_t>(lane) * sizeof value, sizeof value);
  return value;
}

template <bool compare>
void exchange_128(Warp& warp, const Instruction& i, LaneMask lanes) {
  execute_atomic(warp, i, lanes, 1, [&](int lane, std::byte* host, bool, Digest& digest) {
    const Word128 b = row_128(warp.source<std::byte>(i, 2), lane);
    Word128 old = b;
    bool changed;
    if constexpr (compare) {
      const Word128 desired = row_128(warp.source<std::byte>(i, 3), lane);
      exchange_16(host, old, desired);
      changed = old == b && desired != old;
    } else {
      old = update_16(host, [&](Word128) { return b; });
      changed = old != b;
    }
    std::memcpy(warp.result<std::byte>(i, 0) + static_cast<std::size_t>(lane) * sizeof old, &old, sizeof old);
    digest.read(static_cast<std::uint64_t>(old ^ old >> 64));
    return changed;
  });
}

template <class F>
Execute for_bits(ptx::Type type, Form& form) {
  switch (ptx::bytes_of(type)) {
    case 4:
      return modify<std::uint32_t, F{}>;
    case 8:
      return modify<std::uint64_t, F{}>;
    default:
      form.unknown("no type of 32 or 64 bits");
  }
}

template <class F>
Execute for_order(ptx::Type type, Form& form) {
  using enum ptx::Type;
  switch (type) {
    case u32:
      return modify<std::uint32_t, F{}>;
    case s32:
      return modify<std::int32_t, F{}>;
    case u64:
      return modify<std::uint64_t, F{}>;
    case s64:
      return modify<std::int64_t, F{}>;
    default:
      form.unknown("type");
  }
}

template <HalfOperation operation>
Execute for_half(ptx::Type type, Form& form) {
  using enum ptx::Type;
  switch (type) {
    case f16:
      return modify<std::uint16_t, combine_half<false, operation>>;
    case bf16:
      return modify<std::uint16_t, combine_half<true, operation>>;
    case f16x2:
      return modify<std::uint32_t, combine_pair<false, operation>>;
    case bf16x2:
      return modify<std::uint32_t, combine_pair<true, operation>>;
    default:
      form.unknown("type");
  }
}

bool is_half(ptx::Type type) {
  using enum ptx::Type;
  return type == f16 || type == bf16 || type == f16x2 || type == bf16x2;
}

Execute choose(Form& form, std::string_view operation, ptx::Type type) {
  using enum ptx::Type;
  const bool vector = form.instruction().memory.vector > 1;
  if (vector && !is_half(type) && type != f32) form.unknown("vector of this type");
  if (is_half(type)) {
    if (operation == "add") return for_half<HalfOperation::add>(type, form);
    if (vector && operation == "min") return for_half<HalfOperation::min>(type, form);
    if (vector && operation == "max") return for_half<HalfOperation::max>(type, form);
    form.unknown("type");
  }
  if (type == f32 || type == f64) {
    if (operation != "add") form.unknown("type");
    return type == f32 ? Execute{modify<std::uint32_t, add_f32>} : Execute{modify<std::uint64_t, add_f64>};
  }
  if (operation == "add") return for_bits<Add>(type, form);
  if (operation == "and") return for_bits<And>(type, form);
  if (operation == "or") return for_bits<Or>(type, form);
  if (operation == "xor") return for_bits<Xor>(type, form);
  if (operation == "min") return for_order<Minimum>(type, form);
  if (operation == "max") return for_order<Maximum>(type, form);
  if (operation == "inc" && type == u32) return modify<std::uint32_t, Increment{}>;
  if (operation == "dec" && type == u32) return modify<std::uint32_t, Decrement{}>;
  if (operation == "exch")
    return type == b128 ? Execute{exchange_128<false>} : for_bits<Exchange>(type, form);
  if (operation == "cas") {
    switch (ptx::bytes_of(type)) {
      case 2:
        return compare_and_swap<std::uint16_t>;
      case 4:
        return compare_and_swap<std::uint32_t>;
      case 8:
        return compare_and_swap<std::uint64_t>;
      case 16:
        return exchange_128<true>;
      default:
        break;
    }
  }
  form.unknown("type");
}

Execute decode_atomic(Form& form, bool has_result) {
  using enum ptx::Type;
  Instruction& i = form.instruction();
  i.kind = InstructionClass::atomic;
  take_memory_modifiers(form, Order::relaxed);
  if (i.memory.space != ptx::Space::none && i.memory.space != ptx::Space::global &&
      i.memory.space != ptx::Space::shared)
    form.unknown("state space");
  const std::string_view operation =
      form.take_one_of({"add", "and", "or", "xor", "inc", "dec", "min", "max", "exch", "cas"});
  if (operation.empty()) form.unknown("no operation");
  i.memory.exchange = operation == "exch";
  const bool noftz = form.take("noftz");
  const bool policy = form.take("L2::cache_hint");
  const std::string_view vector = form.take_one_of({"v2", "v4", "v8"});
  i.memory.vector = vector.empty() ? 1 : static_cast<std::uint8_t>(vector[1] - '0');
  const ptx::Type type =
      form.take_type({b16, b32, b64, b128, u32, u64, s32, s64, f16, f16x2, bf16, bf16x2, f32, f64});
  i.memory.element_bytes = static_cast<std::uint8_t>(ptx::bytes_of(type));
  if (noftz != is_half(type) && (noftz || operation == "add"))
    form.unknown(".noftz belongs to the 16-bit types");
  if (i.memory.vector > 1 &&
      (i.memory.space == ptx::Space::shared || i.memory.vector * i.memory.element_bytes > 16))
    form.unknown("vector");
  form.finish();

  std::size_t next = 0;
  if (has_result) {
    if (form.results(next++, type) != i.memory.vector) form.unknown("number of elements");
  } else {
    for (int k = 0; k < i.memory.vector; ++k) form.sink();
  }
  form.address(next++);
  i.detail = form.address_bytes();
  if (form.sources(next++, type) != i.memory.vector) form.unknown("number of elements");
  if (operation == "cas") form.source(next++, type);
  if (policy) form.ignore(next);
  return choose(form, operation, type);
}

/// Instruction.detail of a fence: bits.
enum FenceDetail : std::uint64_t { for_device = 1, async_shared = 2, async_global = 4 };

/// Orders the lanes' accesses before it with those after it.
void execute_fence(Warp& warp, const Instruction& i, LaneMask lanes) {
  __builtin_ia32_mfence();
  watch::fence(warp, lanes, i.detail & for_device);
  if (i.detail & (async_shared | async_global))
    watch::proxy_fence(warp, i.detail & async_shared, i.detail & async_global);
}

}  // namespace

Execute decode_atom(Form& form) { return decode_atomic(form, true); }
Execute decode_red(Form& form) { return decode_atomic(form, false); }

Execute decode_membar(Form& form) {
  Instruction& i = form.instruction();
  i.kind = InstructionClass::fence;
  if (form.take("proxy")) form.unknown("proxies");
  const std::string_view level = form.take_one_of({"cta", "gl", "sys"});
  if (level.empty()) form.unknown("no level");
  form.finish();
  i.detail = level != "cta";
  return execute_fence;
}

/// Fences between proxies and those of barrier objects order more than the emulator ever reorders; as fences of their
/// scope they count none the less.
Execute decode_fence(Form& form) {
  Instruction& i = form.instruction();
  i.kind = InstructionClass::fence;
  if (!form.take_one_of({"proxy", "mbarrier_init"}).empty()) {
    const std::string_view proxies =
        form.take_one_of({"async", "alias", "async::generic", "tensormap::generic"});
    form.take_one_of({"acquire", "release"});
    form.take_one_of({"sync_restrict::shared::cta", "sync_restrict::shared::cluster"});
    const std::string_view space = form.take_one_of({"global", "shared::cta", "shared::cluster"});
    form.take_one_of({"cta", "cluster", "gpu", "sys"});
    form.finish();
    for (std::size_t k = 0; k < form.operand_count(); ++k) form.ignore(k);  // the tensor map that it is about
    i.detail = proxies != "async"  ? 0
               : space.empty()     ? async_shared | async_global
               : space == "global" ? async_global
                                   : async_shared;
    return execute_fence;
  }
  form.take_one_of({"sc", "acq_rel", "acquire", "release"});
  const std::string_view scope = form.take_one_of({"cta", "cluster", "gpu", "sys"});
  if (scope.empty()) form.unknown("no scope");
  form.finish();
  i.detail = scope != "cta";
  return execute_fence;
}

}  // namespace emulator
