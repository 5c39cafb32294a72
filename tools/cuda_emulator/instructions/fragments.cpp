#include "instructions/decoders.h"
#include "instructions/meeting.h"
#include "instructions/memory_unit.h"

// Matrices of 8x8 16-bit elements between shared memory and registers (PTX ISA 9.7.14.5.15 to 9.7.14.5.17).
namespace emulator {
namespace {

constexpr int side = 8, row_bytes = 16;
using Matrix = std::array<std::array<std::uint16_t, side>, side>;

/// Instruction::detail of ldmatrix and stmatrix.
struct Detail {
  std::uint8_t matrices;       ///< 1, 2 or 4
  bool transposed;             ///< .trans
  std::uint8_t address_bytes;  ///< width of the address register
  std::uint8_t unused[5] = {};
};

/// A lane's register holds two elements of a row, the lower column in the low half; transposed: of a column.
std::uint32_t fragment(const Matrix& m, int lane, bool transposed) {
  const int line = lane / 4, first = lane % 4 * 2;
  const std::uint32_t low = transposed ? m[first][line] : m[line][first];
  const std::uint32_t high = transposed ? m[first + 1][line] : m[line][first + 1];
  return low | high << 16;
}

void set_fragment(Matrix& m, int lane, bool transposed, std::uint32_t value) {
  const int line = lane / 4, first = lane % 4 * 2;
  (transposed ? m[first][line] : m[line][first]) = static_cast<std::uint16_t>(value);
  (transposed ? m[first + 1][line] : m[line][first + 1]) = static_cast<std::uint16_t>(value >> 16);
}

/// Opens the rows of the matrices for loading or storing: lane l has the address of row l % 8 of matrix l / 8.
MemoryAccess open_rows(Warp& warp, std::span<const Participant> participants, AccessKind kind,
                       int address_operand, LaneMask lanes) {
  const Instruction& i = *participants[0].instruction;
  const Detail detail = std::bit_cast<Detail>(i.detail);
  const LaneMask rows = detail.matrices == 4 ? all_lanes : (LaneMask{1} << (detail.matrices * side)) - 1;
  MemoryAccess rows_access(kind, i, rows & lanes);
  rows_access.matrix_rows = true;
  rows_access.access.bytes = row_bytes;
  rows_access.access.address = gather_addresses(participants, address_operand, detail.address_bytes);
  if (i.memory.space == ptx::Space::none) {
    for_lanes(rows & lanes, [&](int lane) {
      std::uint64_t& address = rows_access.access.address[lane];
      if (space_of(address) != ptx::Space::shared) {
        report(Severity::error, "wrong-space",
               i.statement->opcode + " with an address outside of shared memory", {&warp, lane, &i});
        throw KernelFault{717};
      }
      address &= ~window_mask;
    });
  }
  rows_access.open(warp, i, ptx::Space::shared);
  return rows_access;
}

/// Operands: registers, address.
void load_matrices(Warp& warp, std::span<const Participant> participants, LaneMask lanes) {
  const Instruction& i = *participants[0].instruction;
  const Detail detail = std::bit_cast<Detail>(i.detail);
  expect_whole_warp(warp, participants, lanes);
  MemoryAccess rows = open_rows(warp, participants, AccessKind::load, detail.matrices, lanes);
  std::array<Matrix, 4> matrices{};
  for_lanes(rows.access.lanes, [&](int lane) {
    read_bytes(rows.host[lane], matrices[lane / side][lane % side].data(), row_bytes);
  });
  rows.close(warp, i);
  for (int n = 0; n < detail.matrices; ++n) {
    Values<std::uint32_t> d;
    for (int lane = 0; lane < warp_size; ++lane) d[lane] = fragment(matrices[n], lane, detail.transposed);
    scatter(participants, n, d);
  }
}

/// Operands: address, registers.
void store_matrices(Warp& warp, std::span<const Participant> participants, LaneMask lanes) {
  const Instruction& i = *participants[0].instruction;
  const Detail detail = std::bit_cast<Detail>(i.detail);
  expect_whole_warp(warp, participants, lanes);
  std::array<Matrix, 4> matrices;
  for (int n = 0; n < detail.matrices; ++n) {
    const auto r = gather<std::uint32_t>(participants, n + 1);
    for (int lane = 0; lane < warp_size; ++lane) set_fragment(matrices[n], lane, detail.transposed, r[lane]);
  }
  MemoryAccess rows = open_rows(warp, participants, AccessKind::store, 0, lanes);
  for_lanes(rows.access.lanes, [&](int lane) {
    write_bytes(rows.host[lane], matrices[lane / side][lane % side].data(), row_bytes);
  });
  rows.close(warp, i);
}

/// Operands: d, a.
void transpose(Warp& warp, std::span<const Participant> participants, LaneMask lanes) {
  expect_whole_warp(warp, participants, lanes);
  const auto a = gather<std::uint32_t>(participants, 1);
  Matrix m;
  for (int lane = 0; lane < warp_size; ++lane) set_fragment(m, lane, false, a[lane]);
  Values<std::uint32_t> d;
  for (int lane = 0; lane < warp_size; ++lane) d[lane] = fragment(m, lane, true);
  scatter(participants, 0, d);
}

void take_modifiers(Form& form) {
  if (!form.take("sync") || !form.take("aligned") || !form.take("m8n8"))
    form.unknown("needs .sync.aligned.m8n8");
  form.take_type({ptx::Type::b16});
}

/// Modifiers of ldmatrix and stmatrix; returns the number of matrices.
std::uint8_t take_rows(Form& form, Detail& detail) {
  take_modifiers(form);
  const auto count = form.take_one_of({"x1", "x2", "x4"});
  if (count.empty()) form.unknown("needs .x1, .x2 or .x4");
  detail.matrices = static_cast<std::uint8_t>(count[1] - '0');
  detail.transposed = form.take("trans");
  MemoryModifiers& memory = form.instruction().memory;
  memory.space = form.take("shared") || form.take("shared::cta") ? ptx::Space::shared : ptx::Space::none;
  memory.vector = 1;
  memory.element_bytes = row_bytes;
  return detail.matrices;
}

}  // namespace

Execute decode_ldmatrix(Form& form) {
  Detail detail{};
  const std::size_t registers = take_rows(form, detail);
  if (form.results(0, ptx::Type::b32) != registers) form.unknown("as many registers as matrices");
  form.address(1);
  detail.address_bytes = static_cast<std::uint8_t>(form.address_bytes());
  form.instruction().detail = std::bit_cast<std::uint64_t>(detail);
  form.instruction().kind = InstructionClass::load_shared;
  return meet_warp<load_matrices>;
}

Execute decode_stmatrix(Form& form) {
  Detail detail{};
  const std::size_t registers = take_rows(form, detail);
  form.address(0);
  if (form.sources(1, ptx::Type::b32) != registers) form.unknown("as many registers as matrices");
  detail.address_bytes = static_cast<std::uint8_t>(form.address_bytes());
  form.instruction().detail = std::bit_cast<std::uint64_t>(detail);
  form.instruction().kind = InstructionClass::store_shared;
  return meet_warp<store_matrices>;
}

Execute decode_movmatrix(Form& form) {
  take_modifiers(form);
  if (!form.take("trans")) form.unknown("movmatrix needs .trans");
  form.instruction().kind = InstructionClass::warp;
  form.result(0, ptx::Type::b32);
  form.source(1, ptx::Type::b32);
  return meet_warp<transpose>;
}

}  // namespace emulator
