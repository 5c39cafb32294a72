#include <algorithm>
#include <cstring>

#include "instructions/decoders.h"
#include "instructions/matrix_types.h"
#include "instructions/meeting.h"

// mma.sync: D = A B + C of a warp, with the fragments that PTX documents (PTX ISA 9.7.14.5).
namespace emulator {
namespace {

using namespace matrix;

/// Shape and types of an mma. A is m x k and row-major, B is k x n and column-major; n is always 8.
template <int rows, int steps, class TypeA, class TypeB, class TypeC, class TypeD>
struct Mma {
  static constexpr int m = rows, n = 8, k = steps;
  using A = TypeA;
  using B = TypeB;
  using C = TypeC;
  using D = TypeD;
  // Registers of a lane, in the order of the operands.
  static constexpr int d_registers = m * n / warp_size / D::packed,
                       a_registers = m * k / warp_size / A::packed,
                       b_registers = k * n / warp_size / B::packed,
                       c_registers = m * n / warp_size / C::packed;
  static constexpr int a_first = d_registers, b_first = a_first + a_registers,
                       c_first = b_first + b_registers;
};

/// Elements of neighbouring lanes lie side by side: a register of all lanes holds 8 runs of 4 * packed elements.
template <class T>
using Runs = typename T::Number[8][4 * T::packed];

template <class T>
void read_runs(std::span<const Participant> participants, int operand, Runs<T>& runs) {
  using Row = typename T::Row;
  constexpr int count = warp_size * T::packed;
  if (participants[0].lanes == all_lanes)
    to_numbers<T, count>(participants[0].source<Row>(operand), runs[0]);
  else
    to_numbers<T, count>(gather<Row>(participants, operand).data(), runs[0]);
}

// Pieces of matrices are moved as vectors, which the compiler does not find in loops over single elements.

__m256d load(const double* from) { return _mm256_loadu_pd(from); }
__m256d load(const std::int64_t* from) { return _mm256_loadu_pd(reinterpret_cast<const double*>(from)); }
void store(double* to, __m256d four) { _mm256_storeu_pd(to, four); }
void store(std::int64_t* to, __m256d four) { _mm256_storeu_pd(reinterpret_cast<double*>(to), four); }

/// Four numbers with even places in a row of eight, and four with odd ones, side by side.
template <class Number>
void interleave(const Number* even, const Number* odd, Number* eight) {
  const __m256d x = load(even), y = load(odd);
  const __m256d low = _mm256_unpacklo_pd(x, y), high = _mm256_unpackhi_pd(x, y);  // 0 1 4 5, 2 3 6 7
  store(eight, _mm256_permute2f128_pd(low, high, 0x20));
  store(eight + 4, _mm256_permute2f128_pd(low, high, 0x31));
}

/// The reverse.
template <class Number>
void part(const Number* eight, Number* even, Number* odd) {
  const __m256d x = load(eight), y = load(eight + 4);
  const __m256d low = _mm256_permute2f128_pd(x, y, 0x20), high = _mm256_permute2f128_pd(x, y, 0x31);
  store(even, _mm256_unpacklo_pd(low, high));
  store(odd, _mm256_unpackhi_pd(low, high));
}

template <int length>
void transpose(const double (&from)[8][length], double (*to)[8]) {
  for (int row = 0; row < 8; row += 4)
    for (int column = 0; column < length; column += 4) {
      const __m256d r0 = load(&from[row][column]), r1 = load(&from[row + 1][column]),
                    r2 = load(&from[row + 2][column]), r3 = load(&from[row + 3][column]);
      const __m256d even01 = _mm256_unpacklo_pd(r0, r1), odd01 = _mm256_unpackhi_pd(r0, r1),
                    even23 = _mm256_unpacklo_pd(r2, r3), odd23 = _mm256_unpackhi_pd(r2, r3);
      store(&to[column][row], _mm256_permute2f128_pd(even01, even23, 0x20));
      store(&to[column + 1][row], _mm256_permute2f128_pd(odd01, odd23, 0x20));
      store(&to[column + 2][row], _mm256_permute2f128_pd(even01, even23, 0x31));
      store(&to[column + 3][row], _mm256_permute2f128_pd(odd01, odd23, 0x31));
    }
}

template <int length>
void transpose(const std::int16_t (&from)[8][length], std::int16_t (*to)[8]) {
  for (int column = 0; column < length; column += 8) {
    __m128i rows[8], next[8];
    for (int k = 0; k < 8; ++k) rows[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(&from[k][column]));
    // Thrice: rows k and k + 4, merged element by element, become rows 2 k and 2 k + 1.
    for (int round = 0; round < 3; ++round) {
      for (int k = 0; k < 4; ++k) {
        next[2 * k] = _mm_unpacklo_epi16(rows[k], rows[k + 4]);
        next[2 * k + 1] = _mm_unpackhi_epi16(rows[k], rows[k + 4]);
      }
      std::copy(next, next + 8, rows);
    }
    for (int k = 0; k < 8; ++k) _mm_storeu_si128(reinterpret_cast<__m128i*>(to[column + k]), rows[k]);
  }
}

// All documented layouts are instances of three formulas. Runs of A are pieces of rows: registers alternate between
// rows 0 to 7 and the rows 8 below them. Runs of B are pieces of columns 0 to 7. Runs of an accumulator are rows of 8
// elements, or two registers hold the even and the odd elements of 8 rows.

template <class C, int m, int n>
void read_accumulator(std::span<const Participant> participants, int first, typename C::Number (&c)[m][n]) {
  static_assert(n == 8);
  for (int row = 0; row < m; row += 8) {
    if constexpr (C::packed == 2) {
      read_runs<C>(participants, first++, reinterpret_cast<Runs<C>&>(c[row]));
    } else {
      Runs<C> even, odd;
      read_runs<C>(participants, first++, even);
      read_runs<C>(participants, first++, odd);
      for (int run = 0; run < 8; ++run) interleave(even[run], odd[run], c[row + run]);
    }
  }
}

template <class D>
void write_runs(std::span<const Participant> participants, Fit fit, int operand, const Runs<D>& runs) {
  using Row = typename D::Row;
  constexpr int count = warp_size * D::packed;
  if (participants[0].lanes == all_lanes)
    return to_bits<D, count>(runs[0], fit, participants[0].result<Row>(operand));
  Values<Row> values;
  to_bits<D, count>(runs[0], fit, values.data());
  scatter(participants, operand, values);
}

template <class D, int m, int n>
void write_accumulator(std::span<const Participant> participants, Fit fit,
                       const typename D::Number (&d)[m][n]) {
  static_assert(n == 8);
  for (int row = 0, operand = 0; row < m; row += 8) {
    if constexpr (D::packed == 2) {
      write_runs<D>(participants, fit, operand++, reinterpret_cast<const Runs<D>&>(d[row]));
    } else {
      Runs<D> even, odd;
      for (int run = 0; run < 8; ++run) part(d[row + run], even[run], odd[run]);
      write_runs<D>(participants, fit, operand++, even);
      write_runs<D>(participants, fit, operand++, odd);
    }
  }
}

template <class M>
void multiply(Warp& warp, std::span<const Participant> participants, LaneMask lanes) {
  using A = typename M::A;
  using B = typename M::B;
  using C = typename M::C;
  using D = typename M::D;
  expect_whole_warp(warp, participants, lanes);
  const Fit fit = static_cast<Fit>(participants[0].instruction->detail);

  typename A::Number a[M::m][M::k];
  for (int r = 0; r < M::a_registers; ++r) {
    constexpr int halves = M::m / 8, length = 4 * A::packed;
    Runs<A> runs;
    read_runs<A>(participants, M::a_first + r, runs);
    for (int run = 0; run < 8; ++run)
      std::memcpy(&a[8 * (r % halves) + run][length * (r / halves)], runs[run], sizeof runs[run]);
  }
  typename B::Number b[M::k][M::n];
  for (int r = 0; r < M::b_registers; ++r) {
    Runs<B> runs;
    read_runs<B>(participants, M::b_first + r, runs);
    transpose(runs, &b[4 * B::packed * r]);
  }
  typename D::Number c[M::m][M::n];
  read_accumulator<C>(participants, M::c_first, c);
  multiply_add(a, b, c);
  write_accumulator<D>(participants, fit, c);
}

template <class T>
constexpr ptx::Type register_type = sizeof(typename T::Row) == 8 ? ptx::Type::b64 : ptx::Type::b32;

template <class M>
Execute decode_operands(Form& form) {
  const auto expect = [&](std::size_t found, int wanted) {
    if (found != static_cast<std::size_t>(wanted)) form.unknown("wrong number of registers in a fragment");
  };
  expect(form.results(0, register_type<typename M::D>), M::d_registers);
  expect(form.sources(1, register_type<typename M::A>), M::a_registers);
  expect(form.sources(2, register_type<typename M::B>), M::b_registers);
  expect(form.sources(3, register_type<typename M::C>), M::c_registers);
  form.instruction().multiply_adds_of_warp = M::m * M::n * M::k;
  return meet_warp<multiply<M>>;
}

struct Types {
  ptx::Type d, a, b, c;
};

/// For products of f16 and 8-bit floats, whose accumulators are f16 or f32.
template <int m, int k, class A, class B>
Execute by_accumulators(Form& form, const Types& types) {
  using enum ptx::Type;
  if (types.d == f32 && types.c == f32) return decode_operands<Mma<m, k, A, B, F32, F32>>(form);
  if (types.d == f16 && types.c == f16) return decode_operands<Mma<m, k, A, B, F16, F16>>(form);
  form.unknown("accumulators are both .f16 or both .f32");
}

template <int m, int k, class A, class B>
Execute with_accumulator_f32(Form& form, const Types& types) {
  if (types.d != ptx::Type::f32 || types.c != ptx::Type::f32) form.unknown("accumulators are .f32");
  return decode_operands<Mma<m, k, A, B, F32, F32>>(form);
}

template <int m, int k>
Execute decode_8_bit_floats(Form& form, const Types& types) {
  using enum ptx::Type;
  if (types.a == e4m3 && types.b == e4m3) return by_accumulators<m, k, E4m3, E4m3>(form, types);
  if (types.a == e4m3 && types.b == e5m2) return by_accumulators<m, k, E4m3, E5m2>(form, types);
  if (types.a == e5m2 && types.b == e4m3) return by_accumulators<m, k, E5m2, E4m3>(form, types);
  if (types.a == e5m2 && types.b == e5m2) return by_accumulators<m, k, E5m2, E5m2>(form, types);
  form.unknown("both factors are .e4m3 or .e5m2");
}

template <int m, int k>
Execute decode_integers(Form& form, const Types& types) {
  using enum ptx::Type;
  if (types.d != s32 || types.c != s32) form.unknown("accumulators of integers are .s32");
  form.instruction().detail = static_cast<std::uint64_t>(form.take("satfinite") ? Fit::clamp : Fit::wrap);
  if (types.a == s8 && types.b == s8) return decode_operands<Mma<m, k, S8, S8, S32, S32>>(form);
  if (types.a == s8 && types.b == u8) return decode_operands<Mma<m, k, S8, U8, S32, S32>>(form);
  if (types.a == u8 && types.b == s8) return decode_operands<Mma<m, k, U8, S8, S32, S32>>(form);
  if (types.a == u8 && types.b == u8) return decode_operands<Mma<m, k, U8, U8, S32, S32>>(form);
  form.unknown("both factors are .s8 or .u8");
}

template <int m, int k>
Execute decode_doubles(Form& form, const Types& types) {
  using enum ptx::Type;
  if (types.d != f64 || types.b != f64 || types.c != f64) form.unknown("all types are .f64");
  form.take("rn");
  return decode_operands<Mma<m, k, F64, F64, F64, F64>>(form);
}

}  // namespace

Execute decode_mma(Form& form) {
  using enum ptx::Type;
  form.instruction().kind = InstructionClass::matrix;
  if (!form.take("sync") || !form.take("aligned")) form.unknown("mma needs .sync.aligned");
  const auto shape = form.take_one_of({"m8n8k4", "m8n8k16", "m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32"});
  if (!form.take("row") || !form.take("col")) form.unknown("A is .row and B is .col");
  Types types;
  for (ptx::Type* type : {&types.d, &types.a, &types.b, &types.c}) *type = form.take_type();

  switch (types.a) {
    case f16:
    case bf16:
    case tf32:
      if (types.b != types.a) break;
      if (types.a == f16 && shape == "m16n8k8") return by_accumulators<16, 8, F16, F16>(form, types);
      if (types.a == f16 && shape == "m16n8k16") return by_accumulators<16, 16, F16, F16>(form, types);
      if (types.a == bf16 && shape == "m16n8k8") return with_accumulator_f32<16, 8, Bf16, Bf16>(form, types);
      if (types.a == bf16 && shape == "m16n8k16")
        return with_accumulator_f32<16, 16, Bf16, Bf16>(form, types);
      if (types.a == tf32 && shape == "m16n8k4") return with_accumulator_f32<16, 4, Tf32, Tf32>(form, types);
      if (types.a == tf32 && shape == "m16n8k8") return with_accumulator_f32<16, 8, Tf32, Tf32>(form, types);
      break;
    case e4m3:
    case e5m2:
      if (shape == "m16n8k16") return decode_8_bit_floats<16, 16>(form, types);
      if (shape == "m16n8k32") return decode_8_bit_floats<16, 32>(form, types);
      break;
    case f64:
      if (shape == "m8n8k4") return decode_doubles<8, 4>(form, types);
      if (shape == "m16n8k4") return decode_doubles<16, 4>(form, types);
      if (shape == "m16n8k8") return decode_doubles<16, 8>(form, types);
      if (shape == "m16n8k16") return decode_doubles<16, 16>(form, types);
      break;
    case s8:
    case u8:
      if (shape == "m8n8k16") return decode_integers<8, 16>(form, types);
      if (shape == "m16n8k16") return decode_integers<16, 16>(form, types);
      if (shape == "m16n8k32") return decode_integers<16, 32>(form, types);
      break;
    default:
      break;
  }
  form.unknown("no such shape for these types");
}

}  // namespace emulator
