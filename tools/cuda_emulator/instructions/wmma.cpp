#include <optional>

#include "instructions/decoders.h"
#include "instructions/matrix_types.h"
#include "instructions/meeting.h"
#include "instructions/memory_unit.h"

// wmma.load, wmma.mma and wmma.store (PTX ISA 9.7.14.4). PTX leaves open which lane holds which element of a
// matrix; here element e, counted row by row, is number e % p of lane e / p, where p is the number of elements of a
// lane.
namespace emulator {
namespace {

using namespace matrix;

/// The fragments of a matrix of `rows` x `columns` elements in the registers of a warp. As factors, f16 matrices always
/// take 8 registers a lane, in which the lane's elements are repeated.
template <class T, int row_count, int column_count, bool factor>
struct Fragment {
  using Type = T;
  static constexpr int rows = row_count, columns = column_count;
  static constexpr int per_lane = rows * columns / warp_size;
  static constexpr int registers = factor && T::type == ptx::Type::f16 ? 8 : per_lane / T::packed;
  static constexpr int element_bytes = sizeof(typename T::Row) / T::packed;
  static constexpr ptx::Type register_type = sizeof(typename T::Row) == 8 ? ptx::Type::b64 : ptx::Type::b32;
  static constexpr std::uint32_t bytes = registers * sizeof(typename T::Row);

  /// The registers of each lane: the elements row by row.
  using Words = std::array<std::array<typename T::Row, per_lane / T::packed>, warp_size>;

  static Words read(std::span<const Participant> participants, int first) {
    Words words;
    for (int r = 0; r < per_lane / T::packed; ++r) {
      const auto values = gather<typename T::Row>(participants, first + r);
      for (int lane = 0; lane < warp_size; ++lane) words[lane][r] = values[lane];
    }
    return words;
  }
  static void write(std::span<const Participant> participants, int first, const Words& words) {
    constexpr int distinct = per_lane / T::packed;
    for (int r = 0; r < registers; ++r) {
      Values<typename T::Row> values;
      for (int lane = 0; lane < warp_size; ++lane) values[lane] = words[lane][r % distinct];
      scatter(participants, first + r, values);
    }
  }
  static void read_numbers(std::span<const Participant> participants, int first,
                           typename T::Number (&matrix)[rows][columns]) {
    const Words words = read(participants, first);
    to_numbers<T, rows * columns>(words.data(), matrix[0]);
  }
};

/// Instruction::detail of load and store.
struct Detail {
  bool column_major;
  std::uint8_t address_bytes;  ///< width of the address register
  std::uint8_t unused[6] = {};
};

/// Reports a mistake of the whole warp and ends the kernel.
[[noreturn]] void fail(Warp& warp, const Instruction& i, std::string_view kind, const std::string& message,
                       int error) {
  report(Severity::error, kind, message, {&warp, 0, &i});
  throw KernelFault{error};
}

/// A matrix in memory. Its lines (rows, or columns when column-major) are runs of neighbouring elements.
template <class Fragment>
class Storage {
 public:
  Storage(Warp& warp, std::span<const Participant> participants, LaneMask lanes, int address_operand,
          int stride_operand)
      : warp_(warp), i_(*participants[0].instruction) {
    const Detail detail = std::bit_cast<Detail>(i_.detail);
    column_major_ = detail.column_major;
    const auto addresses = gather_addresses(participants, address_operand, detail.address_bytes);
    const auto strides = gather<std::uint32_t>(participants, stride_operand);
    address_ = addresses[lowest(lanes)];
    stride_ = strides[lowest(lanes)];
    for_lanes(lanes, [&](int lane) {
      if (addresses[lane] != address_ || strides[lane] != stride_)
        fail(warp, i_, "wmma-uniform",
             "lane " + std::to_string(lane) + " has another address or stride than the lanes before it", 719);
    });
    if (address_ % Fragment::bytes != 0)
      fail(warp, i_, "misaligned",
           "matrix at an address that is no multiple of " + std::to_string(Fragment::bytes) + " bytes", 716);
    if (stride_ < static_cast<std::uint32_t>(length()))
      report(Severity::warning, "wmma-stride",
             "stride of " + std::to_string(stride_) + " elements is less than the " +
                 std::to_string(length()) + " elements of a " + (column_major_ ? "column" : "row"),
             {&warp, 0, &i_});
  }

  void load() {
    transfer(AccessKind::load,
             [](std::byte* host, std::byte* bytes, std::uint32_t count) { read_bytes(host, bytes, count); });
  }
  void store() {
    transfer(AccessKind::store,
             [](std::byte* host, std::byte* bytes, std::uint32_t count) { write_bytes(host, bytes, count); });
  }
  typename Fragment::Words get() const {
    typename Fragment::Words words;
    copy_elements(bytes_, reinterpret_cast<std::byte*>(words.data()), Fragment::rows, Fragment::columns);
    return words;
  }
  void set(const typename Fragment::Words& words) {
    copy_elements(reinterpret_cast<const std::byte*>(words.data()), bytes_, Fragment::columns,
                  Fragment::rows);
  }

 private:
  int lines() const { return column_major_ ? Fragment::columns : Fragment::rows; }
  int length() const { return column_major_ ? Fragment::rows : Fragment::columns; }
  /// Between rows and lines. When these are columns, element (row, column) of `to` is element (column, row) of `from`.
  void copy_elements(const std::byte* from, std::byte* to, int rows, int columns) const {
    constexpr std::size_t size = Fragment::element_bytes;
    if (!column_major_) {
      std::memcpy(to, from, sizeof bytes_);
      return;
    }
    for (int row = 0; row < rows; ++row)
      for (int column = 0; column < columns; ++column, to += size)
        std::memcpy(to, from + static_cast<std::size_t>(column * rows + row) * size, size);
  }
  /// Lines move in chunks of up to 16 bytes, each by one lane: lane 0 has the first chunk of the first line.
  template <class Move>
  void transfer(AccessKind kind, Move move) {
    const std::uint32_t line_bytes = static_cast<std::uint32_t>(length()) * Fragment::element_bytes;
    const std::uint32_t chunk = std::min({16u, line_bytes, Fragment::bytes});
    const std::uint32_t chunks_of_line = line_bytes / chunk,
                        chunks = chunks_of_line * static_cast<std::uint32_t>(lines());
    for (std::uint32_t first = 0; first < chunks; first += warp_size) {
      const std::uint32_t count = std::min<std::uint32_t>(chunks - first, warp_size);
      MemoryAccess m(kind, i_, count == warp_size ? all_lanes : (LaneMask{1} << count) - 1);
      m.access.bytes = chunk;
      for (std::uint32_t lane = 0; lane < count; ++lane) {
        const std::uint32_t line = (first + lane) / chunks_of_line,
                            at = (first + lane) % chunks_of_line * chunk;
        m.access.address[lane] = address_ + std::uint64_t{line} * stride_ * Fragment::element_bytes + at;
      }
      m.open(warp_, i_, i_.memory.space);
      for (std::uint32_t lane = 0; lane < count; ++lane)
        move(m.host[lane], bytes_ + (first + lane) * chunk, chunk);
      m.close(warp_, i_);
    }
  }

  Warp& warp_;
  const Instruction& i_;
  bool column_major_ = false;
  std::uint64_t address_ = 0;
  std::uint32_t stride_ = 0;
  std::byte bytes_[Fragment::rows * Fragment::columns * Fragment::element_bytes];  ///< line after line
};

/// Operands: registers, address, stride.
template <class Fragment>
void load(Warp& warp, std::span<const Participant> participants, LaneMask lanes) {
  expect_whole_warp(warp, participants, lanes);
  Storage<Fragment> storage(warp, participants, lanes, Fragment::registers, Fragment::registers + 1);
  storage.load();
  Fragment::write(participants, 0, storage.get());
}

/// Operands: address, registers, stride.
template <class Fragment>
void store(Warp& warp, std::span<const Participant> participants, LaneMask lanes) {
  expect_whole_warp(warp, participants, lanes);
  Storage<Fragment> storage(warp, participants, lanes, 0, Fragment::registers + 1);
  storage.set(Fragment::read(participants, 1));
  storage.store();
}

/// Operands: registers of d, a, b, c.
template <class A, class B, class C, class D>
void multiply(Warp& warp, std::span<const Participant> participants, LaneMask lanes) {
  constexpr int m = D::rows, n = D::columns, k = A::columns;
  expect_whole_warp(warp, participants, lanes);
  const Fit fit = static_cast<Fit>(participants[0].instruction->detail);
  typename A::Type::Number a[m][k], b[k][n];
  typename D::Type::Number c[m][n];
  int first = D::registers;
  A::read_numbers(participants, first, a);
  first += A::registers;
  B::read_numbers(participants, first, b);
  first += B::registers;
  C::read_numbers(participants, first, c);
  multiply_add(a, b, c);
  typename D::Words words;
  to_bits<typename D::Type, m * n>(c[0], fit, words.data());
  D::write(participants, 0, words);
}

template <int rows, int columns, int depth>
struct Shape {
  static constexpr int m = rows, n = columns, k = depth;
};

/// Calls visit.template operator()<Shape<m, n, k>>() for the shapes of f16, bf16, s8 and u8.
template <class Visit>
Execute for_shape(Form& form, std::string_view shape, Visit visit) {
  if (shape == "m16n16k16") return visit.template operator()<Shape<16, 16, 16>>();
  if (shape == "m32n8k16") return visit.template operator()<Shape<32, 8, 16>>();
  if (shape == "m8n32k16") return visit.template operator()<Shape<8, 32, 16>>();
  form.unknown("no such shape for these types");
}

/// Calls visit.template operator()<Fragment>() for matrix a, b, c or d of a wmma.
template <class Visit>
Execute for_fragment(Form& form, std::string_view matrix, std::string_view shape, ptx::Type type,
                     Visit visit) {
  using enum ptx::Type;
  const auto of = [&]<class T, class S>() -> Execute {
    if (matrix == "a") return visit.template operator()<Fragment<T, S::m, S::k, true>>();
    return visit.template operator()<Fragment<T, S::k, S::n, true>>();
  };
  const auto accumulator = [&]<class T, class S>() -> Execute {
    return visit.template operator()<Fragment<T, S::m, S::n, false>>();
  };
  if (matrix == "a" || matrix == "b") {
    if (type == tf32 && shape == "m16n16k8") return of.template operator()<Tf32, Shape<16, 16, 8>>();
    if (type == f64 && shape == "m8n8k4") return of.template operator()<F64, Shape<8, 8, 4>>();
    return for_shape(form, shape, [&]<class S>() -> Execute {
      if (type == f16) return of.template operator()<F16, S>();
      if (type == bf16) return of.template operator()<Bf16, S>();
      if (type == s8) return of.template operator()<S8, S>();
      if (type == u8) return of.template operator()<U8, S>();
      form.unknown("no such type of a factor for this shape");
    });
  }
  if (type == f32 && shape == "m16n16k8") return accumulator.template operator()<F32, Shape<16, 16, 8>>();
  if (type == f64 && shape == "m8n8k4") return accumulator.template operator()<F64, Shape<8, 8, 4>>();
  return for_shape(form, shape, [&]<class S>() -> Execute {
    if (type == f16) return accumulator.template operator()<F16, S>();
    if (type == f32) return accumulator.template operator()<F32, S>();
    if (type == s32) return accumulator.template operator()<S32, S>();
    form.unknown("no such type of an accumulator for this shape");
  });
}

std::string_view take_shape(Form& form) {
  if (!form.take("sync") || !form.take("aligned")) form.unknown("wmma needs .sync.aligned");
  return form.take_one_of({"m16n16k16", "m32n8k16", "m8n32k16", "m16n16k8", "m8n8k4"});
}

void expect(Form& form, std::size_t found, int wanted) {
  if (found != static_cast<std::size_t>(wanted)) form.unknown("wrong number of registers in a fragment");
}

Execute decode_transfer(Form& form, bool is_store) {
  const auto matrix = is_store ? form.take_one_of({"d"}) : form.take_one_of({"a", "b", "c"});
  const auto shape = take_shape(form);
  const auto layout = form.take_one_of({"row", "col"});
  if (matrix.empty() || layout.empty()) form.unknown("which matrix, .row or .col?");
  Instruction& i = form.instruction();
  if (form.take("global")) {
    i.memory.space = ptx::Space::global;
    i.kind = is_store ? InstructionClass::store_global : InstructionClass::load_global;
  } else if (form.take("shared") || form.take("shared::cta")) {
    i.memory.space = ptx::Space::shared;
    i.kind = is_store ? InstructionClass::store_shared : InstructionClass::load_shared;
  } else {
    i.kind = InstructionClass::generic;
  }
  return for_fragment(form, matrix, shape, form.take_type(), [&]<class Fragment>() -> Execute {
    if (is_store) {
      form.address(0);
      expect(form, form.sources(1, Fragment::register_type), Fragment::registers);
    } else {
      expect(form, form.results(0, Fragment::register_type), Fragment::registers);
      form.address(1);
    }
    const bool column_major = layout == "col";
    if (form.operand_count() > 2) {
      form.source(2, ptx::Type::u32);
    } else {
      form.constant(ptx::Type::u32, column_major ? Fragment::rows : Fragment::columns);
    }
    i.memory.vector = 1;
    i.memory.element_bytes = Fragment::element_bytes;
    i.detail =
        std::bit_cast<std::uint64_t>(Detail{column_major, static_cast<std::uint8_t>(form.address_bytes())});
    return is_store ? meet_warp<store<Fragment>> : meet_warp<load<Fragment>>;
  });
}

template <class S, class TypeA, class TypeB, class TypeC, class TypeD>
Execute decode_operands(Form& form) {
  using A = Fragment<TypeA, S::m, S::k, true>;
  using B = Fragment<TypeB, S::k, S::n, true>;
  using C = Fragment<TypeC, S::m, S::n, false>;
  using D = Fragment<TypeD, S::m, S::n, false>;
  expect(form, form.results(0, D::register_type), D::registers);
  expect(form, form.sources(1, A::register_type), A::registers);
  expect(form, form.sources(2, B::register_type), B::registers);
  expect(form, form.sources(3, C::register_type), C::registers);
  form.instruction().multiply_adds_of_warp = S::m * S::n * S::k;
  return meet_warp<multiply<A, B, C, D>>;
}

Execute decode_product(Form& form) {
  using enum ptx::Type;
  form.instruction().kind = InstructionClass::matrix;
  const auto shape = take_shape(form);
  // The layouts of A and B, which do not matter for the fragments.
  for (int matrix = 0; matrix < 2; ++matrix)
    if (form.take_one_of({"row", "col"}).empty()) form.unknown("wmma.mma needs the layouts of A and B");
  std::array<ptx::Type, 4> types{};
  std::size_t count = 0;
  while (count < 4 && (types[count] = form.take_type()) != none) ++count;

  if (count == 2)  // f16 factors: only D and C are named
    return for_shape(form, shape, [&]<class S>() -> Execute {
      const auto [d, c, none_1, none_2] = types;
      if (d == f16 && c == f16) return decode_operands<S, F16, F16, F16, F16>(form);
      if (d == f16 && c == f32) return decode_operands<S, F16, F16, F32, F16>(form);
      if (d == f32 && c == f16) return decode_operands<S, F16, F16, F16, F32>(form);
      if (d == f32 && c == f32) return decode_operands<S, F16, F16, F32, F32>(form);
      form.unknown("accumulators are .f16 or .f32");
    });
  const auto [d, a, b, c] = types;
  if (count != 4 || a != b || c != d) form.unknown("no such types of a product");
  if (a == tf32 && d == f32 && shape == "m16n16k8")
    return decode_operands<Shape<16, 16, 8>, Tf32, Tf32, F32, F32>(form);
  if (a == f64 && d == f64 && shape == "m8n8k4") {
    form.take("rn");
    return decode_operands<Shape<8, 8, 4>, F64, F64, F64, F64>(form);
  }
  return for_shape(form, shape, [&]<class S>() -> Execute {
    if (a == bf16 && d == f32) return decode_operands<S, Bf16, Bf16, F32, F32>(form);
    if (d == s32) {
      form.instruction().detail = static_cast<std::uint64_t>(form.take("satfinite") ? Fit::clamp : Fit::wrap);
      if (a == s8) return decode_operands<S, S8, S8, S32, S32>(form);
      if (a == u8) return decode_operands<S, U8, U8, S32, S32>(form);
    }
    form.unknown("no such types of a product");
  });
}

}  // namespace

Execute decode_wmma(Form& form) {
  const auto operation = form.take_one_of({"load", "store", "mma"});
  if (operation == "load") return decode_transfer(form, false);
  if (operation == "store") return decode_transfer(form, true);
  if (operation == "mma") return decode_product(form);
  form.unknown("wmma needs .load, .store or .mma");
}

}  // namespace emulator
