#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>

#include "tests/lanewise.h"
#include "tests/operations.h"

// Random programs of arithmetic, with guards, immediates and forward branches: every register of every thread must hold
// what an evaluation of the same program in C++ gives.

using namespace emulator;
using namespace emulator::test;

namespace {

constexpr int registers = 6;    // of each bank
constexpr int threads = 80;     // the last warp is half empty
constexpr int statements = 60;  // of a program
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int programs = 40;  // sanitizers judge the code that runs, not its results
#else
constexpr int programs = 400;
#endif

using u32 = std::uint32_t;
using u64 = std::uint64_t;

/// All registers of a thread.
struct State {
  std::array<std::array<u64, registers>, banks> values{};
  bool carry = false;
};

struct Value {
  bool immediate = false;
  int number = 0;  ///< of the register
  u64 bits = 0;    ///< of the immediate
};

struct Statement {
  const Operation* operation = nullptr;  ///< nullptr: a branch
  std::vector<int> results;
  std::vector<Value> sources;
  int guard = -1;  ///< number of a predicate
  bool negated = false;
  std::size_t target = 0;  ///< of a branch: a later statement
};
using Program = std::vector<Statement>;

int below(std::mt19937_64& random, int limit) { return static_cast<int>(random() % static_cast<u64>(limit)); }

template <class T>
u64 sample_bits(std::mt19937_64& random) {
  const T value = sample<T>(random);
  u64 bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

u64 sample_of(Bank bank, std::mt19937_64& random) {
  switch (bank) {
    case Bank::pred:
      return random() & 1;
    case Bank::f32:
      return sample_bits<float>(random);
    case Bank::f64:
      return sample_bits<double>(random);
    case Bank::b32:
      return sample_bits<u32>(random);
    case Bank::b64:
      return sample_bits<u64>(random);
    case Bank::f16x2:
    case Bank::bf16x2:
      return random() & 0xffffffff;
    case Bank::b16:
      return sample_bits<std::uint16_t>(random);
    default:
      return random() & 0xffff;
  }
}

bool may_be_immediate(Bank bank) {
  return bank == Bank::b16 || bank == Bank::b32 || bank == Bank::b64 || bank == Bank::f32 ||
         bank == Bank::f64;
}

Program random_program(std::mt19937_64& random) {
  Program program(statements);
  for (std::size_t k = 0; k < program.size(); ++k) {
    Statement& s = program[k];
    if (below(random, 5) == 0) {
      s.guard = below(random, registers);
      s.negated = random() & 1;
    }
    if (below(random, 12) == 0) {
      s.target = std::min(k + 1 + static_cast<std::size_t>(below(random, 10)), program.size());
      if (below(random, 8) != 0) s.guard = below(random, registers);
      continue;
    }
    const std::vector<Operation>& all = operations();
    s.operation = &all[random() % all.size()];
    // Two results of one statement lie in two registers.
    const int first = below(random, registers);
    for (std::size_t r = 0; r < s.operation->results.size(); ++r)
      s.results.push_back((first + static_cast<int>(r)) % registers);
    for (const Operand& operand : s.operation->sources) {
      Value value;
      if (operand.literal) {
        value = {true, 0, random() % 256};
      } else if (s.operation->immediates && may_be_immediate(operand.bank) && below(random, 5) == 0) {
        value = {true, 0, sample_of(operand.bank, random)};
      } else {
        value.number = below(random, registers);
      }
      s.sources.push_back(value);
    }
  }
  return program;
}

std::string register_name(Bank bank, int number) {
  return bank_names[static_cast<std::size_t>(bank)] + std::to_string(number);
}

std::string hexadecimal(const char* prefix, int digits, u64 bits) {
  char text[24];
  std::snprintf(text, sizeof text, "%s%0*llX", prefix, digits, static_cast<unsigned long long>(bits));
  return text;
}

std::string text_of(const Operand& operand, const Value& value) {
  if (!value.immediate) return register_name(operand.bank, value.number);
  if (operand.bank == Bank::f32) return hexadecimal("0f", 8, value.bits);
  if (operand.bank == Bank::f64) return hexadecimal("0d", 16, value.bits);
  return hexadecimal("0x", 1, value.bits);
}

std::string text_of(const Statement& s) {
  std::string text;
  if (s.guard >= 0) text = std::string(s.negated ? "@!" : "@") + register_name(Bank::pred, s.guard) + " ";
  if (!s.operation) return text + "bra L" + std::to_string(s.target) + ";";
  std::vector<std::string> operands;
  for (std::size_t r = 0; r < s.results.size(); ++r)
    operands.push_back(register_name(s.operation->results[r], s.results[r]));
  for (std::size_t k = 0; k < s.sources.size(); ++k)
    operands.push_back(text_of(s.operation->sources[k], s.sources[k]));
  const std::string& form = s.operation->text;
  if (form.find('$') == std::string::npos) {
    text += form;
    for (std::size_t k = 0; k < operands.size(); ++k) text += (k ? ", " : " ") + operands[k];
  } else {
    for (std::size_t at = 0; at < form.size(); ++at)
      if (form[at] == '$')
        text += operands[static_cast<std::size_t>(form[++at] - '0')];
      else
        text += form[at];
  }
  return text + ";";
}

/// The first `count` statements, with a label before each and one behind the last.
std::string text_of(const Program& program, std::size_t count) {
  std::string text;
  for (std::size_t k = 0; k < program.size(); ++k) {
    text += "L" + std::to_string(k) + ":\n";
    if (k < count) text += text_of(program[k]) + "\n";
  }
  return text + "L" + std::to_string(program.size()) + ":\n";
}

void evaluate(const Program& program, std::size_t count, State& state) {
  const auto bank = [&](Bank b) -> auto& { return state.values[static_cast<std::size_t>(b)]; };
  for (std::size_t k = 0; k < count;) {
    const Statement& s = program[k];
    const bool runs = s.guard < 0 || (bank(Bank::pred)[static_cast<std::size_t>(s.guard)] != 0) != s.negated;
    if (!s.operation) {
      k = runs ? s.target : k + 1;
      continue;
    }
    ++k;
    if (!runs) continue;
    std::array<u64, 8> sources{}, results{};
    for (std::size_t i = 0; i < s.sources.size(); ++i) {
      const Value& value = s.sources[i];
      sources[i] = value.immediate
                       ? value.bits
                       : bank(s.operation->sources[i].bank)[static_cast<std::size_t>(value.number)];
    }
    s.operation->evaluate(sources.data(), results.data(), state.carry);
    for (std::size_t r = 0; r < s.results.size(); ++r)
      bank(s.operation->results[r])[static_cast<std::size_t>(s.results[r])] = results[r];
  }
}

int record_bytes() {
  int bytes = 0;
  for (const int width : bank_bytes) bytes += registers * ((width + 7) / 8 * 8);
  return bytes;
}

/// Loads or stores all registers: a record of 8 bytes for each, at %rd1.
std::string transfer(bool load) {
  std::string text;
  int offset = 0;
  for (int b = 0; b < banks; ++b)
    for (int r = 0; r < registers; ++r, offset += 8) {
      const auto bank = static_cast<Bank>(b);
      const std::string name = register_name(bank, r), at = "[%rd1+" + std::to_string(offset) + "]";
      const std::string type = bank_types[static_cast<std::size_t>(b)];
      if (bank == Bank::pred) {
        text += load ? "ld.global.b32 %r1, " + at + ";\nsetp.ne.u32 " + name + ", %r1, 0;\n"
                     : "selp.u32 %r1, 1, 0, " + name + ";\nst.global.b32 " + at + ", %r1;\n";
      } else {
        text += load ? "ld.global." + type + " " + name + ", " + at + ";\n"
                     : "st.global." + type + " " + at + ", " + name + ";\n";
      }
    }
  return text;
}

std::vector<State> emulate(const Program& program, std::size_t count, const std::vector<State>& before) {
  std::string body;
  for (std::size_t b = 0; b < banks; ++b)
    body += std::string(".reg .") + bank_types[b] + " " + bank_names[b] + "<" + std::to_string(registers) +
            ">;\n";
  const std::string record = std::to_string(record_bytes());
  // Every thread begins with a clear carry flag.
  body += "mad.wide.u32 %rd1, %t, " + record + ", %p0;\n" + transfer(true) + "add.cc.u32 %r1, 0, 0;\n" +
          text_of(program, count) + transfer(false);
  const std::size_t bytes = static_cast<std::size_t>(record_bytes());
  std::vector<u64> memory;
  for (const State& state : before)
    for (const auto& bank : state.values) memory.insert(memory.end(), bank.begin(), bank.end());
  REQUIRE(memory.size() * 8 == bytes * before.size());
  Buffer buffer(memory.size() * 8);
  buffer.write(memory.data(), memory.size() * 8);
  Module module({kernel_text(1, body)}, 0);
  LaunchShape shape;
  shape.block = {threads, 1, 1};
  Arguments arguments;
  arguments.add(buffer.address());
  REQUIRE(run(module, shape, arguments) == 0);
  REQUIRE(take_reports().empty());
  memory = buffer.values<u64>(memory.size());
  std::vector<State> after(before.size());
  std::size_t next = 0;
  for (State& state : after)
    for (auto& bank : state.values)
      for (u64& value : bank) value = memory[next++];
  return after;
}

/// NaN of any sign and payload become one: PTX leaves them open.
u64 canonical(Bank bank, u64 bits) {
  const auto half = [](u64 h, u64 infinity) { return (h & 0x7fff) > infinity ? 0x7fff : h & 0xffff; };
  const auto is_nan = [](auto x) { return x != x; };
  switch (bank) {
    case Bank::f32:
      return is_nan(std::bit_cast<float>(static_cast<u32>(bits))) ? 0x7fffffff : bits;
    case Bank::f64:
      return is_nan(std::bit_cast<double>(bits)) ? ~u64{0} >> 1 : bits;
    case Bank::f16:
      return half(bits, 0x7c00);
    case Bank::bf16:
      return half(bits, 0x7f80);
    case Bank::f16x2:
      return half(bits, 0x7c00) | half(bits >> 16, 0x7c00) << 16;
    case Bank::bf16x2:
      return half(bits, 0x7f80) | half(bits >> 16, 0x7f80) << 16;
    default:
      return bits;
  }
}

struct Difference {
  int thread;
  std::string text;
};

std::optional<Difference> first_difference(const Program& program, std::size_t count,
                                           const std::vector<State>& before) {
  const std::vector<State> found = emulate(program, count, before);
  for (int thread = 0; thread < threads; ++thread) {
    State want = before[static_cast<std::size_t>(thread)];
    evaluate(program, count, want);
    for (std::size_t b = 0; b < banks; ++b)
      for (int r = 0; r < registers; ++r) {
        const auto bank = static_cast<Bank>(b);
        const u64 have =
            canonical(bank, found[static_cast<std::size_t>(thread)].values[b][static_cast<std::size_t>(r)]);
        const u64 should = canonical(bank, want.values[b][static_cast<std::size_t>(r)]);
        if (have != should)
          return Difference{thread, register_name(bank, r) + " is " + hexadecimal("0x", 1, have) + ", want " +
                                        hexadecimal("0x", 1, should)};
      }
  }
  return std::nullopt;
}

/// Sources of a statement as the evaluation sees them, for the message.
std::string sources_of(const Program& program, std::size_t statement, State state) {
  evaluate(program, statement, state);
  std::string text;
  const Statement& s = program[statement];
  for (std::size_t k = 0; s.operation && k < s.sources.size(); ++k) {
    const Value& value = s.sources[k];
    const auto& bank = state.values[static_cast<std::size_t>(s.operation->sources[k].bank)];
    text += " " +
            hexadecimal("0x", 1, value.immediate ? value.bits : bank[static_cast<std::size_t>(value.number)]);
  }
  return text;
}

}  // namespace

TEST_CASE("random programs compute what their evaluation in C++ computes") {
  std::mt19937_64 random(20250611);
  for (int number = 0; number < programs; ++number) {
    const Program program = random_program(random);
    std::vector<State> before(threads);
    for (State& state : before)
      for (std::size_t b = 0; b < banks; ++b)
        for (u64& value : state.values[b]) value = sample_of(static_cast<Bank>(b), random);
    if (!first_difference(program, program.size(), before)) continue;
    // The shortest beginning that differs ends with the instruction at fault.
    for (std::size_t count = 1; count <= program.size(); ++count)
      if (const auto difference = first_difference(program, count, before)) {
        FAIL_CHECK(
            "program " << number << ", statement " << count - 1 << ": " << text_of(program[count - 1])
                       << " of"
                       << sources_of(program, count - 1, before[static_cast<std::size_t>(difference->thread)])
                       << ": thread " << difference->thread << ": " << difference->text);
        break;
      }
  }
}

TEST_CASE("every operation of the random programs alone") {
  std::mt19937_64 random(7);
  for (const Operation& operation : operations()) {
    Statement s;
    s.operation = &operation;
    for (std::size_t r = 0; r < operation.results.size(); ++r) s.results.push_back(static_cast<int>(r));
    int source = 2;
    for (const Operand& operand : operation.sources) {
      Value value;
      value.number = source++;
      if (operand.literal) value = {true, 0, random() % 256};
      s.sources.push_back(value);
    }
    std::vector<State> before(threads);
    for (State& state : before)
      for (std::size_t b = 0; b < banks; ++b)
        for (u64& value : state.values[b]) value = sample_of(static_cast<Bank>(b), random);
    const Program program{s};
    if (const auto difference = first_difference(program, 1, before))
      FAIL_CHECK(text_of(s) << " of"
                            << sources_of(program, 0, before[static_cast<std::size_t>(difference->thread)])
                            << ": thread " << difference->thread << ": " << difference->text);
  }
}
