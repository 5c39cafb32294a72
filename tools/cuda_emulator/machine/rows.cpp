#include "machine/rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <queue>
#include <string_view>
#include <tuple>

namespace emulator {
namespace {

constexpr std::uint32_t sink_bytes = 16 * warp_size;  ///< the sink takes the widest values

/// Widths that rows have; registers of different widths never share one.
constexpr std::array<std::uint32_t, 5> row_widths{0, 2, 4, 8, 16};
std::size_t size_class(std::uint32_t width) {
  return static_cast<std::size_t>(std::find(row_widths.begin(), row_widths.end(), width) -
                                  row_widths.begin());
}

struct Use {
  std::uint32_t number;  ///< of the register
  bool written;
};

/// Instructions that are entered at the first and left at the last.
struct CodeBlock {
  std::uint32_t first, last;
  std::vector<std::uint32_t> next;
};

/// The instructions from the first to the last at which a register is live, whatever the order in which they run.
struct Range {
  std::uint32_t first = ~0u, last = 0;
  bool read_first = false;  ///< may be read before it is written
  void include(std::uint32_t at) {
    first = std::min(first, at);
    last = std::max(last, at);
  }
};

/// Calls f(Use) for what the instruction reads and then for what it writes.
template <class F>
void for_uses(const Instruction& i, F&& f) {
  const auto visit = [&](Slot slot) {
    if (slot.where > sink_row) f(Use{static_cast<std::uint32_t>(slot.where) - 1, slot.written});
  };
  if (i.guarded) visit(i.guard);
  for (const bool written : {false, true})
    for (std::uint16_t k = 0; k < i.operand_count; ++k)
      if (i.operands[k].written == written) visit(i.operands[k]);
}

/// Whether no lane goes on behind the instruction.
bool ends_path(const Instruction& i) {
  if (i.guarded || i.kind != InstructionClass::control) return false;
  const std::string_view opcode = i.statement->opcode;
  return opcode == "bra" || opcode == "brx" || opcode == "ret" || opcode == "exit";
}

std::vector<CodeBlock> blocks_of(const std::vector<Instruction>& code) {
  const auto for_targets = [](const Instruction& i, auto&& f) {
    if (i.kind != InstructionClass::control) return;
    if (i.statement->opcode == "bra") f(i.target);
    if (i.statement->opcode == "brx" && i.extra)
      for (const std::uint32_t target : *static_cast<const std::vector<std::uint32_t>*>(i.extra)) f(target);
  };
  std::vector<bool> begins(code.size() + 1);
  begins[0] = true;
  for (const Instruction& i : code) {
    if (i.kind == InstructionClass::control) begins[i.index + 1] = true;
    for_targets(i, [&](std::uint32_t target) { begins[target] = true; });
  }
  std::vector<CodeBlock> blocks;
  std::vector<std::uint32_t> block_at(code.size());
  for (std::uint32_t k = 0; k < code.size(); ++k) {
    if (begins[k]) blocks.push_back({k, k, {}});
    blocks.back().last = k;
    block_at[k] = static_cast<std::uint32_t>(blocks.size() - 1);
  }
  for (CodeBlock& block : blocks) {
    const Instruction& last = code[block.last];
    for_targets(last, [&](std::uint32_t target) { block.next.push_back(block_at[target]); });
    if (!ends_path(last) && block.last + 1 < code.size()) block.next.push_back(block_at[block.last + 1]);
  }
  return blocks;
}

/// Where each register is live (backward data-flow analysis over blocks).
std::vector<Range> live_ranges(const Function& function, std::size_t registers) {
  const std::vector<Instruction>& code = function.code;
  const std::vector<CodeBlock> blocks = blocks_of(code);

  // A guarded write may leave the old value. Registers that the decoder added are filled right before their one reader, under
  // its guard.
  const auto replaces = [&](Use use, const Instruction& i) {
    return use.written && (!i.guarded || use.number >= function.source->registers.size());
  };
  // Most registers live in one block, which writes them first: only the others take part in the analysis.
  constexpr std::uint32_t nowhere = ~0u, several = ~0u - 1;
  std::vector<Range> ranges(registers);
  std::vector<std::uint32_t> home(registers, nowhere);
  for (std::uint32_t b = 0; b < blocks.size(); ++b)
    for (std::uint32_t k = blocks[b].first; k <= blocks[b].last; ++k)
      for_uses(code[k], [&](Use use) {
        ranges[use.number].include(k);
        std::uint32_t& at = home[use.number];
        if (at == nowhere)
          at = replaces(use, code[k]) ? b : several;
        else if (at != b)
          at = several;
      });
  std::vector<std::uint32_t> bit(registers), wide;
  for (std::uint32_t r = 0; r < registers; ++r)
    if (home[r] == several) {
      bit[r] = static_cast<std::uint32_t>(wide.size());
      wide.push_back(r);
    }

  using Set = std::vector<std::uint64_t>;
  const auto words = (wide.size() + 63) / 64;
  const auto test = [](const Set& set, std::uint32_t at) { return (set[at / 64] >> at % 64 & 1) != 0; };
  const auto add = [](Set& set, std::uint32_t at) { set[at / 64] |= std::uint64_t{1} << at % 64; };
  std::vector<Set> in(blocks.size(), Set(words)), written(blocks.size(), Set(words)), out = in;
  for (std::size_t b = 0; b < blocks.size(); ++b)
    for (std::uint32_t k = blocks[b].first; k <= blocks[b].last; ++k)
      for_uses(code[k], [&](Use use) {
        if (home[use.number] != several) return;
        const std::uint32_t at = bit[use.number];
        if (!use.written && !test(written[b], at)) add(in[b], at);
        if (replaces(use, code[k])) add(written[b], at);
      });
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t b = blocks.size(); b-- > 0;)
      for (const std::uint32_t next : blocks[b].next)
        for (std::size_t w = 0; w < words; ++w) {
          const std::uint64_t more = in[next][w] & ~out[b][w];
          if (!more) continue;
          out[b][w] |= more;
          in[b][w] |= more & ~written[b][w];
          changed = true;
        }
  }
  const auto include = [&](const Set& set, std::uint32_t instruction) {
    for (std::size_t w = 0; w < words; ++w)
      for (std::uint64_t rest = set[w]; rest; rest &= rest - 1)
        ranges[wide[w * 64 + static_cast<std::size_t>(std::countr_zero(rest))]].include(instruction);
  };
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    include(in[b], blocks[b].first);
    include(out[b], blocks[b].last);
  }
  for (std::uint32_t at = 0; at < wide.size(); ++at)
    if (!blocks.empty() && test(in[0], at)) ranges[wide[at]].read_first = true;
  return ranges;
}

}  // namespace

void assign_rows(Function& function, std::span<Slot> operands, const std::vector<std::uint32_t>& widths) {
  const std::vector<Range> ranges = live_ranges(function, widths.size());
  std::vector<std::uint32_t> order;
  for (std::uint32_t r = 0; r < widths.size(); ++r)
    if (ranges[r].first != ~0u) order.push_back(r);
  // Registers that may be read before they are written come first, so that their rows lie together.
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::tuple(ranges[a].first, !ranges[a].read_first, a) <
           std::tuple(ranges[b].first, !ranges[b].read_first, b);
  });

  // Linear scan. A row is free again behind the last instruction of its register: results never take the rows of sources of the
  // same instruction.
  struct Held {
    std::uint32_t last, row;
    bool operator>(const Held& other) const { return last > other.last; }
  };
  struct Class {
    std::uint32_t rows = 0, read_first = 0;
    std::vector<std::uint32_t> free;  ///< the one freed last is taken first: it is likely in the cache
    std::priority_queue<Held, std::vector<Held>, std::greater<>> held;
  };
  std::array<Class, row_widths.size()> classes;
  std::vector<std::uint32_t> row(widths.size());
  for (const std::uint32_t r : order) {
    Class& c = classes[size_class(widths[r])];
    while (!c.held.empty() && c.held.top().last < ranges[r].first) {
      c.free.push_back(c.held.top().row);
      c.held.pop();
    }
    if (c.free.empty()) {
      row[r] = c.rows++;
    } else {
      row[r] = c.free.back();
      c.free.pop_back();
    }
    if (ranges[r].read_first) c.read_first = c.rows;
    c.held.push({ranges[r].last, row[r]});
  }

  std::array<std::uint32_t, row_widths.size()> base;
  std::uint32_t end = sink_bytes;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    const std::uint32_t bytes = row_bytes(row_widths[c]);
    base[c] = end;
    if (classes[c].read_first) function.read_first.push_back({end, classes[c].read_first * bytes});
    end = (end + classes[c].rows * bytes + 63) / 64 * 64;
  }
  function.register_bytes = end;
  const auto resolve = [&](Slot& slot) {
    if (slot.where <= sink_row) return;
    const std::uint32_t r = static_cast<std::uint32_t>(slot.where) - 1;
    const std::size_t c = size_class(widths[r]);
    slot.where = static_cast<std::int32_t>(base[c] + row[r] * row_bytes(widths[r]));
  };
  for (Instruction& i : function.code)
    i.results_unused = std::all_of(i.operands, i.operands + i.operand_count, [&](Slot slot) {
      if (!slot.written || slot.where == sink_row) return true;
      const Range& range = ranges[static_cast<std::size_t>(slot.where) - 1];
      return range.first == i.index && range.last == i.index;
    });
  for (Slot& slot : operands) resolve(slot);
  for (Instruction& i : function.code)
    if (i.guarded) resolve(i.guard);
}

}  // namespace emulator
