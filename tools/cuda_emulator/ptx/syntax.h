#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// PTX as written: what parse() (ptx/parser.h) makes of a module's text. Names are resolved to declarations
/// only where scopes demand it (registers and labels of inline assembly); everything else keeps its name.
namespace emulator::ptx {

/// Fundamental types (PTX ISA 5.2). Bits, unsigned, signed and floating types of one width share register
/// rows.
enum class Type : std::uint8_t {
  none,
  pred,
  b8,
  b16,
  b32,
  b64,
  b128,
  u8,
  u16,
  u32,
  u64,
  s8,
  s16,
  s32,
  s64,
  f16,
  bf16,
  f16x2,
  bf16x2,
  u16x2,
  s16x2,
  tf32,
  f32,
  f64,
  e4m3,
  e5m2
};
/// Bytes of one value: 1 for b8, 2 for f16, 4 for f16x2, 16 for b128; 0 for none and pred.
std::uint32_t bytes_of(Type type);
/// The type named by a modifier without its dot ("u32"), or Type::none when the name is no type.
Type type_named(std::string_view name);
std::string_view name_of(Type type);
inline bool is_signed(Type t) { return t == Type::s8 || t == Type::s16 || t == Type::s32 || t == Type::s64; }

enum class Space : std::uint8_t { none, reg, global, shared, local, constant, param };

/// Where a statement comes from: `line` counts lines of the PTX text from 1; `file` and `source_line` come
/// from the last .loc before the statement (0 where there was none); `file` is an index of Module::files.
struct Place {
  std::uint32_t line = 0;
  std::uint32_t file = 0;
  std::uint32_t source_line = 0;
  std::uint32_t inlining =
      0;  ///< index of Module::inlinings when the line belongs to an inlined function, else 0
};

/// A call of the source that the compiler replaced by the called function's body (.loc ... inlined_at).
struct Inlining {
  std::string function;                     ///< mangled name of the inlined function
  std::uint32_t file = 0, source_line = 0;  ///< of the call
  std::uint32_t inlining =
      0;  ///< when the call itself stands in an inlined function: that function's, else 0
};

/// A register: declared in a function's body or in an inner scope of it. Every declared register has an index
/// of its own within the function, so that equal names of different scopes differ.
struct Register {
  std::string name;  ///< "%r12", "temp"
  Type type;
};

struct RegisterUse {
  std::uint32_t index;   ///< of Function::registers
  bool negated = false;  ///< "!%p1"
};
/// A literal: integers as two's complement in 64 bits, 0f... and 0d... as bit patterns with `floating` set to
/// f32 or f64.
struct Immediate {
  std::uint64_t bits;
  Type floating = Type::none;
};
/// A special register: "%tid.x", "%laneid", "%envreg1". Every name with '%' that no declaration covers
/// becomes one.
struct SpecialUse {
  std::string name;
};
/// The address of a variable, a parameter, a function; `offset` for "sym+16". Also names a .callprototype,
/// .calltargets or .branchtargets list.
struct SymbolUse {
  std::string name;
  std::int64_t offset = 0;
};
/// "_": a result nobody wants.
struct Sink {};

using Scalar = std::variant<RegisterUse, Immediate, SpecialUse, SymbolUse, Sink>;

/// "[%rd1+8]", "[sym+-4]", "[%rd4, {%r5, %r6}]" (coordinates).
struct Address {
  Scalar base;  ///< register, symbol or immediate
  std::int64_t offset = 0;
  std::vector<Scalar> coordinates;
};
/// "{%f1, %f2, 0}".
struct Vector {
  std::vector<Scalar> elements;
};
/// "%r1|%p2", "_|%p": two results.
struct Pair {
  Scalar first, second;
};
/// Target of bra: an index of Function::labels.
struct LabelUse {
  std::uint32_t label;
};
/// "(%r1, param0)": results or arguments of call.
struct List {
  std::vector<Scalar> elements;
};
/// "%r1.b0", "-%r2", "-%r2.h1": a part of a register, or its negative, as video instructions take them.
struct Part {
  Scalar value;
  std::string selector;  ///< without its dot, empty for the whole register
  bool negative = false;
};
using Operand = std::variant<Scalar, Address, Vector, Pair, LabelUse, List, Part>;

/// Operands of call, whatever the statement leaves out: List of results, callee (SymbolUse or RegisterUse),
/// List of arguments, and for an indirect call the SymbolUse of its .callprototype or .calltargets.
struct Statement {
  std::string opcode;  ///< "ld": the part before the first dot
  std::vector<std::string>
      modifiers;  ///< in order, without dots: {"global", "nc", "v4", "f32"}; "shared::cta" stays one
  std::vector<Operand> operands;
  std::optional<RegisterUse> guard;  ///< "@!%p1"
  Place place;
  std::optional<std::uint32_t>
      used_bytes_mask;  ///< of .pragma "used_bytes_mask N" right before (PTX ISA 9.0)
  std::string text;     ///< for messages, with guard, blanks made one: "@%p1 ld.global.nc.f32 %f1, [%rd2]"
};

/// What a variable's initialiser holds, flattened to bytes with holes for addresses.
struct AddressSlot {
  std::uint64_t offset;  ///< where in the variable 8 bytes (or `bytes`) are to be filled
  std::uint32_t bytes;
  std::string symbol;  ///< variable or function
  std::int64_t addend = 0;
  std::uint32_t shift = 0;  ///< the address is shifted right by so many bits first: 8 for 0xFF00(symbol)
};
struct Variable {
  std::string name;
  Space space;
  Type type = Type::b8;
  std::uint32_t alignment = 1;
  std::uint64_t bytes = 0;            ///< 0 for `.extern .shared x[]`
  std::vector<std::uint8_t> initial;  ///< empty or shorter than `bytes`: the rest is zero
  std::vector<AddressSlot> addresses;
  bool external = false;  ///< .extern
  bool visible = false;
  bool weak = false;     ///< .weak or .common
  bool managed = false;  ///< .attribute(.managed)
};

struct Parameter {
  std::string name;  ///< empty in prototypes
  Type type;
  std::uint32_t alignment;
  std::uint32_t bytes;
  bool in_register = false;  ///< ".reg .b32 x" instead of ".param"
};

struct Dim3 {
  std::uint32_t x = 0, y = 1, z = 1;
};
struct Function {
  std::string name;
  bool entry = false;
  bool external = false;  ///< declared only
  bool visible = false, weak = false;
  std::vector<Parameter> results, parameters;
  std::vector<Register> registers;  ///< those of in_register results and parameters first, in that order
  std::vector<std::string> labels;  ///< names, made unique as those of variables; see label_statement
  std::vector<std::uint32_t>
      label_statement;  ///< index of the statement that follows the label (may be statements.size())
  std::vector<Statement> statements;
  std::vector<Variable>
      variables;  ///< .local, .shared (also of inner scopes) and .param of call scopes, names made unique by
                  ///< the parser: inner duplicates get the suffix "#2", "#3", and so do their uses
  std::map<std::string, std::vector<Parameter>> prototypes_results, prototypes;  ///< .callprototype by label
  std::map<std::string, std::vector<std::string>> branch_targets;                ///< .branchtargets by label
  std::map<std::string, std::vector<std::string>> call_targets;                  ///< .calltargets by label
  Dim3 max_threads, required_threads;  ///< .maxntid, .reqntid; x = 0: not given
  Dim3 required_cluster;               ///< .reqnctapercluster; x = 0: not given
  bool explicit_cluster = false;       ///< .explicitcluster
  std::uint32_t max_cluster_rank = 0;  ///< .maxclusterrank
  bool no_return = false;              ///< .noreturn
  std::uint32_t min_blocks = 0, max_registers = 0;
  Place place;
};

struct Module {
  int version_major = 0, version_minor = 0;
  std::string target;  ///< "sm_90", "sm_90a"
  bool debug = false;
  std::vector<std::string> files;              ///< by .file number; [0] unused
  std::vector<Inlining> inlinings;             ///< [0] unused
  std::map<std::string, std::string> aliases;  ///< .alias: name of the alias to name of the function
  std::vector<Variable> variables;             ///< .global, .const, .shared of the module
  std::vector<Function> functions;             ///< declarations (external) and definitions in order
};

}  // namespace emulator::ptx
