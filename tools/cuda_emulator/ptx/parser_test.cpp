#include "ptx/parser.h"

#include <doctest/doctest.h>

#include <ctime>
#include <string>

namespace emulator::ptx {
namespace {

const std::string head = ".version 9.0\n.target sm_90\n.address_size 64\n";

Module module_of(const std::string& text) { return parse(head + text); }

/// A kernel with a few registers around `body`.
Function kernel(const std::string& body) {
  return module_of(
             ".visible .entry k(.param .u64 k_param_0)\n{\n.reg .pred %p<4>;\n.reg .b32 %r<10>;\n"
             ".reg .b64 %rd<10>;\n.reg .f32 %f<10>;\n" +
             body + "\n}\n")
      .functions.at(0);
}

/// Operands as text, registers by name and index: "%r1" is "%r1:5".
std::string shown(const Function& function, const Scalar& scalar) {
  if (const auto* use = std::get_if<RegisterUse>(&scalar)) {
    return (use->negated ? "!" : "") + function.registers.at(use->index).name + ":" +
           std::to_string(use->index);
  }
  if (const auto* immediate = std::get_if<Immediate>(&scalar)) {
    const auto bits = std::to_string(static_cast<std::int64_t>(immediate->bits));
    return immediate->floating == Type::none ? bits : bits + std::string(name_of(immediate->floating));
  }
  if (const auto* special = std::get_if<SpecialUse>(&scalar)) return "special " + special->name;
  if (const auto* symbol = std::get_if<SymbolUse>(&scalar)) {
    return symbol->name + (symbol->offset == 0 ? "" : "+" + std::to_string(symbol->offset));
  }
  return "_";
}

std::string shown(const Function& function, const std::vector<Scalar>& scalars) {
  std::string text;
  for (const Scalar& scalar : scalars) text += (text.empty() ? "" : ", ") + shown(function, scalar);
  return text;
}

std::string shown(const Function& function, const Operand& operand) {
  if (const auto* scalar = std::get_if<Scalar>(&operand)) return shown(function, *scalar);
  if (const auto* address = std::get_if<Address>(&operand)) {
    std::string text = "[" + shown(function, address->base) + " " + std::to_string(address->offset);
    if (!address->coordinates.empty()) text += " {" + shown(function, address->coordinates) + "}";
    return text + "]";
  }
  if (const auto* vector = std::get_if<Vector>(&operand))
    return "{" + shown(function, vector->elements) + "}";
  if (const auto* pair = std::get_if<Pair>(&operand)) {
    return shown(function, pair->first) + "|" + shown(function, pair->second);
  }
  if (const auto* label = std::get_if<LabelUse>(&operand)) return "label " + function.labels.at(label->label);
  if (const auto* part = std::get_if<Part>(&operand))
    return (part->negative ? "-" : "") + shown(function, part->value) + " part " + part->selector;
  return "(" + shown(function, std::get<List>(operand).elements) + ")";
}

/// "opcode.modifiers operand; operand" of one statement.
std::string shown(const Function& function, const Statement& statement) {
  std::string text;
  if (statement.guard) text += "@" + shown(function, Scalar(*statement.guard)) + " ";
  text += statement.opcode;
  for (const std::string& modifier : statement.modifiers) text += "." + modifier;
  for (std::size_t i = 0; i < statement.operands.size(); ++i) {
    text += (i == 0 ? " " : "; ") + shown(function, statement.operands[i]);
  }
  return text;
}

std::string only(const std::string& body) {
  const Function function = kernel(body);
  REQUIRE(function.statements.size() == 1);
  return shown(function, function.statements[0]);
}

std::string error_of(const std::string& text) {
  try {
    parse(text);
  } catch (const SyntaxError& error) {
    return error.what();
  }
  return "no error";
}

std::vector<std::uint8_t> bytes(std::initializer_list<int> values) {
  return std::vector<std::uint8_t>(values.begin(), values.end());
}

TEST_CASE("types have names and sizes") {
  CHECK(bytes_of(Type::b128) == 16);
  CHECK(bytes_of(Type::bf16x2) == 4);
  CHECK(bytes_of(Type::f64) == 8);
  CHECK(bytes_of(Type::pred) == 0);
  CHECK(type_named("s16x2") == Type::s16x2);
  CHECK(type_named("e5m2") == Type::e5m2);
  CHECK(type_named("x32") == Type::none);
  CHECK(type_named("none") == Type::none);
  for (int i = 1; i <= static_cast<int>(Type::e5m2); ++i) {
    CHECK(type_named(name_of(static_cast<Type>(i))) == static_cast<Type>(i));
  }
  CHECK(name_of(Type::u32) == "u32");
}

TEST_CASE("directives of the module") {
  const Module module = parse(
      "\n\n.version 8.7\n.target sm_90a, debug\n.address_size 64\n.pragma \"x\";\n.file 2 \"b.cu\"\n"
      ".file\t1 \"/a/x.cu\", 1700000000, 1234\n");
  CHECK(module.version_major == 8);
  CHECK(module.version_minor == 7);
  CHECK(module.target == "sm_90a");
  CHECK(module.debug);
  CHECK(module.files == std::vector<std::string>{"", "/a/x.cu", "b.cu"});
  CHECK(module.inlinings.size() == 1);
}

TEST_CASE("operands") {
  CHECK(only("add.s32 %r1, %r2, -5;") == "add.s32 %r1:5; %r2:6; -5");
  CHECK(only("mov.u32 %r1, %tid.x;") == "mov.u32 %r1:5; special %tid.x");
  CHECK(only("mov.u32 %r1, %laneid;") == "mov.u32 %r1:5; special %laneid");
  CHECK(only("mov.f32 %f1, 0f3F800000;") == "mov.f32 %f1:25; 1065353216f32");
  CHECK(only("mov.f64 %rd1, 0dBFF0000000000000;") == "mov.f64 %rd1:15; -4616189618054758400f64");
  CHECK(only("mov.f64 %rd1, -1.5;") == "mov.f64 %rd1:15; -4613937818241073152f64");
  CHECK(only("mov.f32 %f1, -0f3F800000;") == "mov.f32 %f1:25; 3212836864f32");
  CHECK(only("mov.b64 %rd1, 0xFFFFFFFFFFFFFFFE;") == "mov.b64 %rd1:15; -2");
  CHECK(only("mov.b64 %rd1, 010;") == "mov.b64 %rd1:15; 8");
  CHECK(only("mov.b64 %rd1, 0b101U;") == "mov.b64 %rd1:15; 5");
  CHECK(only("mov.b64 %rd1, -(4+3*2)<<1|1;") == "mov.b64 %rd1:15; -19");
  CHECK(only("mov.b64 %rd1, ~0 & 0xff;") == "mov.b64 %rd1:15; 255");
  CHECK(only("mov.b64 %rd1, !0 + 7/2 - 1;") == "mov.b64 %rd1:15; 3");
  CHECK(only("mov.b64 %rd1, -16 >> 2;") == "mov.b64 %rd1:15; -4");
  CHECK(only("mov.b32 %r1, WARP_SZ;") == "mov.b32 %r1:5; 32");
  CHECK(only("mov.u64 %rd1, $str$1;") == "mov.u64 %rd1:15; $str$1");
  CHECK(only("mov.u64 %rd1, table+16;") == "mov.u64 %rd1:15; table+16");
  CHECK(only("ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%f1,%f2,%f3,_}, [%rd1+16];") ==
        "ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%f1:25, %f2:26, %f3:27, _}; [%rd1:15 16]");
  CHECK(only("ld.b32 %r1, [%rd1+-16];") == "ld.b32 %r1:5; [%rd1:15 -16]");
  CHECK(only("ld.b32 %r1, [%rd1-16];") == "ld.b32 %r1:5; [%rd1:15 -16]");
  CHECK(only("ld.b32 %r1, [%rd1];") == "ld.b32 %r1:5; [%rd1:15 0]");
  CHECK(only("ld.b32 %r1, [sym+4+8];") == "ld.b32 %r1:5; [sym 12]");
  CHECK(only("ld.b32 %r1, [1024];") == "ld.b32 %r1:5; [1024 0]");
  CHECK(only("st.shared.b32 [%r1+8], 0f00000000;") == "st.shared.b32 [%r1:5 8]; 0f32");
  CHECK(only("mov.b64 %rd1, {%r1, 0};") == "mov.b64 %rd1:15; {%r1:5, 0}");
  CHECK(only("mov.b64 {%r1,%r2}, %rd1;") == "mov.b64 {%r1:5, %r2:6}; %rd1:15");
  CHECK(only("shfl.sync.down.b32 %r1|%p2, %r2, 1, 31, -1;") ==
        "shfl.sync.down.b32 %r1:5|%p2:2; %r2:6; 1; 31; -1");
  CHECK(only("elect.sync _|%p1, -1;") == "elect.sync _|%p1:1; -1");
  CHECK(only("setp.lt.and.s32 %p1|%p2, %r1, %r2, !%p3;") ==
        "setp.lt.and.s32 %p1:1|%p2:2; %r1:5; %r2:6; !%p3:3");
  CHECK(only("mbarrier.arrive.shared::cta.b64 _, [%r1];") == "mbarrier.arrive.shared::cta.b64 _; [%r1:5 0]");
  CHECK(only("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd4, {%r5, %r6}], [%r7];") ==
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd4:18 0 {%r5:9, %r6:10}]; [%r7:11 0]");
  CHECK(only("ret;") == "ret");
  CHECK(only("bar.sync \t0 ;") == "bar.sync 0");
  CHECK(only("add .s32 %r1, %r2, %r3;") == "add.s32 %r1:5; %r2:6; %r3:7");
}

TEST_CASE("guards") {
  CHECK(only("@%p1 add.s32 %r1, %r1, 1;") == "@%p1:1 add.s32 %r1:5; %r1:5; 1");
  CHECK(only("@!%p1 exit;") == "@!%p1:1 exit");
  CHECK(only("@ ! %p1 exit;") == "@!%p1:1 exit");
  CHECK_THROWS_AS(kernel("@%q exit;"), SyntaxError);
}

TEST_CASE("text and line of a statement") {
  const Function function =
      kernel("ld.global.f32 \t%f1,\n\t[%rd1]; // tail\n@%p1 /* c */ ret; { exit; }\n/* a\nb */ trap;");
  REQUIRE(function.statements.size() == 4);
  CHECK(function.statements[0].text == "ld.global.f32 %f1, [%rd1]");
  CHECK(function.statements[0].place.line == 10);
  CHECK(function.statements[1].text == "@%p1 ret");
  CHECK(function.statements[1].place.line == 12);
  CHECK(function.statements[2].text == "exit");
  CHECK(function.statements[2].place.line == 12);
  CHECK(function.statements[3].place.line == 14);
  CHECK(function.place.line == 4);
}

TEST_CASE("registers of inner scopes") {
  const Function function = kernel(
      "{ .reg .f32 r0; .reg.pred p; .reg .b32 %r<2>, t; @p add.f32 r0, r0, %f1; mov.b32 %r1, %r2; mov.b32 t, "
      "%r1; "
      "{ .reg .b64 r0; mov.b64 r0, %rd1; } mov.f32 r0, %f1; }\n{ .reg .f32 r0; mov.f32 r0, %f1; } mov.b32 "
      "%r1, %r2;");
  REQUIRE(function.registers.size() == 4 + 10 + 10 + 10 + 5 + 1 + 1);
  CHECK(function.registers[34].name == "r0");
  CHECK(function.registers[34].type == Type::f32);
  CHECK(function.registers[35].type == Type::pred);
  CHECK(function.registers[37].name == "%r1");
  CHECK(function.registers[39].type == Type::b64);
  const std::vector<std::string> expected = {
      "@p:35 add.f32 r0:34; r0:34; %f1:25",
      "mov.b32 %r1:37; %r2:6",
      "mov.b32 t:38; %r1:37",
      "mov.b64 r0:39; %rd1:15",
      "mov.f32 r0:34; %f1:25",
      "mov.f32 r0:40; %f1:25",
      "mov.b32 %r1:5; %r2:6",
  };
  REQUIRE(function.statements.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(shown(function, function.statements[i]) == expected[i]);
}

TEST_CASE("families of registers have the indices that they state") {
  const Function function =
      kernel(".reg .b16 a1<20>; .reg .b16 a; mov.b16 a10, a119; mov.b16 a, %r10; mov.b16 a1, a01;");
  CHECK(shown(function, function.statements[0]) == "mov.b16 a10:34; a119:53");
  CHECK(shown(function, function.statements[1]) == "mov.b16 a:54; special %r10");
  CHECK(shown(function, function.statements[2]) == "mov.b16 a1; a01");
}

TEST_CASE("labels of inner scopes") {
  const Function function = kernel(
      "bra.uni END; L: { @%p1 bra L; add.s32 %r1, %r1, 1; L: bra L; bra END; } { bra M; bra L; M: }\nbra "
      "L;\nEND: $L__1:");
  CHECK(function.labels == std::vector<std::string>{"L", "L#2", "M", "END", "$L__1"});
  CHECK(function.label_statement == std::vector<std::uint32_t>{1, 3, 7, 8, 8});
  const std::vector<std::string> expected = {
      "bra.uni label END", "@%p1:1 bra label L#2", "add.s32 %r1:5; %r1:5; 1",
      "bra label L#2",     "bra label END",        "bra label M",
      "bra label L",       "bra label L",
  };
  REQUIRE(function.statements.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(shown(function, function.statements[i]) == expected[i]);
  CHECK(error_of(head + ".entry k()\n{\nbra X;\n{ X: }\n}") ==
        "PTX line 8: label X of line 6 is not declared in function k: \"}\"");
}

TEST_CASE("branch targets") {
  const Function function =
      kernel("{ ts: .branchtargets A, B, A; brx.idx %r1, ts; A: ret; } { A: ret; } B: ret;");
  CHECK(function.branch_targets.at("ts") == std::vector<std::string>{"A", "B", "A"});
  CHECK(shown(function, function.statements[0]) == "brx.idx %r1:5; ts");
  const Function second =
      kernel("A: { ts: .branchtargets A; { brx.idx.uni %r1, ts; } A: ret; } ts: .calltargets f, g;");
  CHECK(second.branch_targets.at("ts") == std::vector<std::string>{"A#2"});
  CHECK(second.call_targets.at("ts#2") == std::vector<std::string>{"f", "g"});
}

TEST_CASE("calls") {
  const Function function = kernel(
      "{ // callseq 0, 0\n.reg .b32 temp_param_reg;\n.param .b64 param0;\nst.param.b64 [param0+0], %rd1;\n"
      ".param .align 8 .b8 retval0[16];\ncall.uni (retval0),\nf,\n(\nparam0\n);\nld.param.b32 %r1, "
      "[retval0+8];\n}\n"
      "{ .param .b32 param0; call g, (param0); }\n{ call h; }\n"
      "{ .param .b32 retval0; .param .b64 param0; prototype_7 : .callprototype (.param .b32 _) _ (.param "
      ".b64 _, .param "
      ".align 8 .b8 _[96]) ;\ncall (retval0), %rd7, (param0), prototype_7;\ncall (retval0), i, ();call %rd1, "
      "p;call (a), "
      "j; }");
  const std::vector<std::string> expected = {
      "st.param.b64 [param0 0]; %rd1:15",
      "call.uni (retval0); f; (param0)",
      "ld.param.b32 %r1:5; [retval0 8]",
      "call (); g; (param0#2)",
      "call (); h; ()",
      "call (retval0#2); %rd7:21; (param0#3); prototype_7",
      "call (retval0#2); i; ()",
      "call (); %rd1:15; (); p",
      "call (a); j; ()",
  };
  REQUIRE(function.statements.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(shown(function, function.statements[i]) == expected[i]);

  REQUIRE(function.variables.size() == 5);
  CHECK(function.variables[0].name == "param0");
  CHECK(function.variables[0].space == Space::param);
  CHECK(function.variables[1].name == "retval0");
  CHECK(function.variables[1].bytes == 16);
  CHECK(function.variables[1].alignment == 8);
  CHECK(function.variables[2].name == "param0#2");
  CHECK(function.variables[2].bytes == 4);
  const std::vector<Parameter>& results = function.prototypes_results.at("prototype_7");
  REQUIRE(results.size() == 1);
  CHECK(results[0].bytes == 4);
  CHECK(results[0].name.empty());
  const std::vector<Parameter>& parameters = function.prototypes.at("prototype_7");
  REQUIRE(parameters.size() == 2);
  CHECK(parameters[0].type == Type::b64);
  CHECK(parameters[1].bytes == 96);
  CHECK(parameters[1].alignment == 8);
}

TEST_CASE("parts of registers and negative registers") {
  const Function function =
      kernel("vmad.s32.u32.s32.shr7 %r1, %r2.b0, -%r3.h1, -%r4;\nadd.s32 %r1, %r2, -4;");
  REQUIRE(function.statements.size() == 2);
  CHECK(shown(function, function.statements[0]) ==
        "vmad.s32.u32.s32.shr7 %r1:5; %r2:6 part b0; -%r3:7 part h1; -%r4:8 part ");
  CHECK(shown(function, function.statements[1]) == "add.s32 %r1:5; %r2:6; -4");
}

TEST_CASE("a prototype may have no results") {
  const Function function = kernel("p: .callprototype _ (.reg .b32 _) .noreturn; call %rd1, (%r1), p;");
  CHECK(function.prototypes_results.at("p").empty());
  CHECK(function.prototypes.at("p").at(0).in_register);
}

TEST_CASE("functions, their parameters and directives") {
  const Module module = module_of(R"(
.extern .func (.param .b32 func_retval0) vprintf
(
	.param .b64 vprintf_param_0,
	.param .b64 vprintf_param_1
)
;
.func __assertfail(.param .b64 a) .noreturn;
.weak .func (.reg .b32 out) scaled(.reg .b32 in, .param .b32 n) { .reg .b32 t; mul.lo.s32 out, in, 2; ret; }
.visible .func plain { ret; }
.entry k(.param .u64 .ptr .global .align 16 k_param_0, .param .align 8 .b8 k_param_1[24],
  .param .f64 .ptr .align 1 c, .param .u8 d)
.maxntid 256, 2, 1
.minnctapersm 3
.maxnreg 64
.reqntid 128
.explicitcluster
.reqnctapercluster 2, 1, 1
.maxclusterrank 8
.pragma "nounroll";
{ ret; }
.visible .weak .entry l() { }
.func .attribute(.unified(0xAB, 0xCD)) attributed() { }
.alias other, plain;
)");
  REQUIRE(module.functions.size() == 7);
  const Function& vprintf = module.functions[0];
  CHECK(vprintf.name == "vprintf");
  CHECK(vprintf.external);
  CHECK_FALSE(vprintf.entry);
  CHECK(vprintf.results.at(0).name == "func_retval0");
  CHECK(vprintf.parameters.at(1).name == "vprintf_param_1");
  CHECK(vprintf.parameters.at(1).bytes == 8);
  CHECK(module.functions[1].no_return);
  CHECK(module.functions[1].external);

  const Function& scaled = module.functions[2];
  CHECK(scaled.weak);
  CHECK_FALSE(scaled.external);
  CHECK(scaled.results.at(0).in_register);
  CHECK_FALSE(scaled.parameters.at(1).in_register);
  REQUIRE(scaled.registers.size() == 3);
  CHECK(scaled.registers[0].name == "out");
  CHECK(scaled.registers[1].name == "in");
  CHECK(shown(scaled, scaled.statements[0]) == "mul.lo.s32 out:0; in:1; 2");
  CHECK(module.functions[3].visible);
  CHECK(module.functions[3].parameters.empty());

  const Function& k = module.functions[4];
  CHECK(k.entry);
  CHECK_FALSE(k.visible);
  CHECK(k.parameters.at(0).type == Type::u64);
  CHECK(k.parameters.at(0).alignment == 8);
  CHECK(k.parameters.at(1).name == "k_param_1");
  CHECK(k.parameters.at(1).bytes == 24);
  CHECK(k.parameters.at(1).alignment == 8);
  CHECK(k.parameters.at(2).alignment == 8);
  CHECK(k.parameters.at(3).bytes == 1);
  CHECK(k.max_threads.x == 256);
  CHECK(k.max_threads.y == 2);
  CHECK(k.min_blocks == 3);
  CHECK(k.max_registers == 64);
  CHECK(k.required_threads.x == 128);
  CHECK(k.required_threads.y == 1);
  CHECK(k.required_cluster.x == 2);
  CHECK(k.explicit_cluster);
  CHECK(k.max_cluster_rank == 8);
  CHECK(module.functions[5].weak);
  CHECK(module.functions[5].max_threads.x == 0);
  CHECK(module.functions[6].name == "attributed");
  CHECK(module.aliases.at("other") == "plain");
}

TEST_CASE("variables of functions") {
  const Module module = module_of(R"(
.shared .align 4 .b8 both[8];
.entry k() {
.local .align 16 .b8 	__local_depot0[320];
.shared .align 4 .f32 s[4][8];
{ .shared .b32 s; .shared .b8 both; st.shared.b32 [s], 1; mov.u32 %x, both;
  { .local .b64 a, b; st.local.b64 [s+4], 0; } }
st.shared.b32 [s+4], 1; mov.u32 %x, both;
})");
  const Function& k = module.functions.at(0);
  REQUIRE(k.variables.size() == 6);
  CHECK(k.variables[0].name == "__local_depot0");
  CHECK(k.variables[0].space == Space::local);
  CHECK(k.variables[0].alignment == 16);
  CHECK(k.variables[0].bytes == 320);
  CHECK(k.variables[1].bytes == 128);
  CHECK(k.variables[1].type == Type::f32);
  CHECK(k.variables[2].name == "s#2");
  CHECK(k.variables[2].alignment == 4);
  CHECK(k.variables[3].name == "both#2");
  CHECK(k.variables[4].bytes == 8);
  CHECK(k.variables[5].name == "b");
  CHECK(shown(k, k.statements[0]) == "st.shared.b32 [s#2 0]; 1");
  CHECK(shown(k, k.statements[1]) == "mov.u32 special %x; both#2");
  CHECK(shown(k, k.statements[2]) == "st.local.b64 [s#2 4]; 0");
  CHECK(shown(k, k.statements[3]) == "st.shared.b32 [s 4]; 1");
  CHECK(shown(k, k.statements[4]) == "mov.u32 special %x; both");
}

TEST_CASE("variables of the module") {
  const Module module = module_of(R"(
.extern .shared .align 16 .b8 dynamic[];
.visible .global .align 4 .u32 plain;
.global .attribute(.managed) .align 4 .s32 managed = -3;
.visible .const .align 4 .b8 cf[16] = {0, 0, 128, 63};
.extern .global .align 8 .f64 far[5];
.weak .global .b64 w;
.global .align 1 .b8 empty[3] = {};
.common .global .v4 .f32 v = {0f3F800000, 2.0, 3, 0f00000000};
.global .f64 d = 0dC002000000000000, e[2] = {1.5, 0f3F800000};
.global .b16 rows[2][3] = {{1}, {2, 3}};
.global .u32 flat[2][2] = {1, 2, 3};
.global .u32 open[] = {1, 2, 0x80000000};
)");
  REQUIRE(module.variables.size() == 13);
  const auto& v = module.variables;
  CHECK(v[0].external);
  CHECK(v[0].space == Space::shared);
  CHECK(v[0].bytes == 0);
  CHECK(v[0].alignment == 16);
  CHECK(v[1].visible);
  CHECK(v[1].initial.empty());
  CHECK(v[2].managed);
  CHECK(v[2].initial == bytes({253, 255, 255, 255}));
  CHECK(v[3].space == Space::constant);
  CHECK(v[3].bytes == 16);
  CHECK(v[3].initial == bytes({0, 0, 128, 63}));
  CHECK_FALSE(v[3].managed);
  CHECK(v[4].external);
  CHECK(v[4].bytes == 40);
  CHECK(v[5].weak);
  CHECK(v[6].bytes == 3);
  CHECK(v[6].initial.empty());
  CHECK(v[7].weak);
  CHECK(v[7].bytes == 16);
  CHECK(v[7].alignment == 16);
  CHECK(v[7].initial == bytes({0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 64, 64, 0, 0, 0, 0}));
  CHECK(v[8].initial == bytes({0, 0, 0, 0, 0, 0, 2, 192}));
  CHECK(v[9].name == "e");
  CHECK(v[9].initial == bytes({0, 0, 0, 0, 0, 0, 248, 63, 0, 0, 0, 0, 0, 0, 240, 63}));
  CHECK(v[10].bytes == 12);
  CHECK(v[10].initial == bytes({1, 0, 0, 0, 0, 0, 2, 0, 3, 0}));
  CHECK(v[11].bytes == 16);
  CHECK(v[11].initial == bytes({1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}));
  CHECK(v[12].bytes == 12);
  CHECK(v[12].initial == bytes({1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 128}));
  CHECK_THROWS_AS(module_of(".global .u32 x[2] = {1, 2, 3};"), SyntaxError);
  CHECK_THROWS_AS(module_of(".global .u32 x[2][2] = {1, 2, 3, {4}};"), SyntaxError);
  CHECK_THROWS_AS(module_of(".global .u32 x[2][2] = {{1, 2, 3}};"), SyntaxError);
  CHECK_THROWS_AS(module_of(".global .u32 x[2] = {{1}, {2}};"), SyntaxError);
  CHECK_THROWS_AS(module_of(".global .u32 x[2][0] = {{}, {}};"), SyntaxError);
}

TEST_CASE("addresses in initialisers") {
  const Module module = module_of(R"(
.global .align 8 .u64 msg = generic($str);
.global .align 8 .u64 s[4] = {1, generic(counter)+4, _Z2f1f, table-8};
.global .align 1 .u8 pk[9] = {7, 0XFF(generic(counter)), 0xFF00(counter+2), 0xFF000000000000(counter)};
.global .align 4 .b32 low = counter;
)");
  REQUIRE(module.variables.size() == 4);
  const auto check = [](const AddressSlot& slot, const char* symbol, std::uint64_t offset,
                        std::uint32_t width, std::int64_t addend, std::uint32_t shift) {
    CHECK(slot.symbol == symbol);
    CHECK(slot.offset == offset);
    CHECK(slot.bytes == width);
    CHECK(slot.addend == addend);
    CHECK(slot.shift == shift);
  };
  check(module.variables[0].addresses.at(0), "$str", 0, 8, 0, 0);
  const auto& s = module.variables[1];
  REQUIRE(s.addresses.size() == 3);
  check(s.addresses[0], "counter", 8, 8, 4, 0);
  check(s.addresses[1], "_Z2f1f", 16, 8, 0, 0);
  check(s.addresses[2], "table", 24, 8, -8, 0);
  CHECK(s.initial.size() == 32);
  CHECK(s.initial[0] == 1);
  const auto& pk = module.variables[2];
  REQUIRE(pk.addresses.size() == 3);
  check(pk.addresses[0], "counter", 1, 1, 0, 0);
  check(pk.addresses[1], "counter", 2, 1, 2, 8);
  check(pk.addresses[2], "counter", 3, 1, 0, 48);
  check(module.variables[3].addresses.at(0), "counter", 0, 4, 0, 0);
  CHECK_THROWS_AS(module_of(".global .u8 x = 0xFFFF(counter);"), SyntaxError);
  CHECK_THROWS_AS(module_of(".global .u8 x = 0x0FF0(counter);"), SyntaxError);
}

TEST_CASE("source lines and inlining") {
  const Module module = module_of(
      ".entry k()\n{\n.loc 1 7 0\nexit;\n\t.loc\t1 8 3\n\t.loc\t2 5 3, function_name $L__info_string0, "
      "inlined_at 1 8 3\n"
      ".loc 2 3 9, function_name $L__info_string1+1, inlined_at 2 5 3\nret;\n.loc 2 6 4, function_name "
      "$L__info_string0, "
      "inlined_at 1 8 3\ntrap;\n.loc 1 9 1\nret;\n}\n.entry l() { ret; }\n.file 1 \"a.cu\"\n.file 2 \"b.h\"\n"
      ".section .debug_abbrev\n{\n.b8 1\n.b32 .debug_loc+64\n.b64 label\n\n}\n"
      ".section\t.debug_str\n\t{\n$L__info_string0:\n.b8 95,90,49,98,105,0\n$L__info_string1:\n.b8 "
      "95,90,49\n.b8 0x61,105,0\n\n\t}\n"
      ".entry m() { ret; }");
  const auto& k = module.functions.at(0).statements;
  REQUIRE(k.size() == 4);
  CHECK(k[0].place.line == 7);
  CHECK(k[0].place.file == 1);
  CHECK(k[0].place.source_line == 7);
  CHECK(k[0].place.inlining == 0);
  CHECK(k[1].place.file == 2);
  CHECK(k[1].place.source_line == 3);
  REQUIRE(module.inlinings.size() == 3);
  const Inlining& inner = module.inlinings.at(k[1].place.inlining);
  CHECK(inner.function == "Z1ai");
  CHECK(inner.file == 2);
  CHECK(inner.source_line == 5);
  const Inlining& outer = module.inlinings.at(inner.inlining);
  CHECK(outer.function == "_Z1bi");
  CHECK(outer.file == 1);
  CHECK(outer.source_line == 8);
  CHECK(outer.inlining == 0);
  CHECK(k[2].place.inlining == inner.inlining);
  CHECK(k[2].place.source_line == 6);
  CHECK(k[3].place.inlining == 0);
  CHECK(module.functions.at(1).statements.at(0).place.source_line == 0);
  CHECK(module.functions.at(2).statements.at(0).place.line == 36);
  CHECK(module.files == std::vector<std::string>{"", "a.cu", "b.h"});
}

TEST_CASE("pragmas") {
  const Function function = kernel(
      ".pragma \"nounroll\";\n.pragma \"used_bytes_mask 61695\";\nld.global.v4.u32 {%r1,%r2,%r3,%r4}, "
      "[%rd1];\nret;\n"
      ".pragma \"used_bytes_mask 0xF0FF\";\nld.b32 %r1, [%rd1];");
  REQUIRE(function.statements.size() == 3);
  CHECK(function.statements[0].used_bytes_mask == 61695u);
  CHECK_FALSE(function.statements[1].used_bytes_mask);
  CHECK(function.statements[2].used_bytes_mask == 0xF0FFu);
}

TEST_CASE("errors name line and text") {
  CHECK(error_of("") == "PTX line 1: .version expected: \"\"");
  CHECK(error_of(head + ".entry k()\n{\n\tadd.s32 a b;\n}") ==
        "PTX line 6: ',' or ';' expected: \"add.s32 a b;\"");
  CHECK(error_of(head + ".surprise x;") == "PTX line 4: unknown directive .surprise: \".surprise x;\"");
  CHECK(error_of(head + ".global .texref t;") ==
        "PTX line 4: unknown directive .texref in a declaration: \".global .texref t;\"");
  CHECK(error_of(head + ".entry k()\n{ .surprise; }") ==
        "PTX line 5: unknown directive .surprise in a function: \"{ .surprise; }\"");
  CHECK(error_of(".version 9.0\n.address_size 32") ==
        "PTX line 2: addresses have 64 bits here: \".address_size 32\"");
  for (const char* body : {"mov.b32 %r1, 09;",
                           "mov.b32 %r1, 0f3F80;",
                           "mov.b32 %r1, 99999999999999999999;",
                           "mov.b32 %r1, 12ab;",
                           "mov.b32 %r1, 1.5+1;",
                           "mov.b32 %r1, 1/0;",
                           "mov.b32 %r1, (1;",
                           "mov.b32 %r1, \"x\";",
                           "ld.b32 %r1, [%rd1;",
                           "mov.b64 {%r1, %rd1;",
                           "bra 7;",
                           "call (a) f;",
                           "L: L: ret;",
                           ".reg .b32 %r<3>;",
                           ".reg .b32 x; .reg .b32 x;",
                           ".shared .b8 x; .shared .b8 x;",
                           ".reg .b32 x<99999999999>;",
                           ".shared .b8 x[99999999999999999];",
                           "/* open",
                           ".shared .align 3 .b8 x;",
                           "}",
                           "{",
                           ".pragma \"x;",
                           "add.s32 %r1, !sym, 1;",
                           ".local .pred x;"}) {
    CAPTURE(body);
    CHECK_THROWS_AS(kernel(body), SyntaxError);
  }
  CHECK_THROWS_AS(kernel("mov.b32 %r1, " + std::string(100000, '(') + "1;"), SyntaxError);
}

/// One kernel with much of what nvcc emits.
const std::string varied = R"(.visible .entry k(.param .u64 p, .param .align 4 .b8 q[12]) .maxntid 128, 1, 1
{
	.local .align 8 .b8 	__local_depot4[40];
	.reg .pred %p<3>; .reg .b32 %r<23>; .reg .b64 %rd<5>;
	.loc	1 5 3, function_name $L__info_string0, inlined_at 1 8 3
	ld.param.u64 	%rd1, [p];
	@!%p1 bra 	$L__BB0_2;
	{ .reg .pred p; setp.ne.s32 p, %r1, -1; L: @p bra L; shfl.sync.idx.b32 %r2|p, %r3, 0, 31, 0xffffffff; }
	.pragma "used_bytes_mask 4095";
	ld.global.v4.u32 {%r1, %r2, %r3, _}, [%rd1+-16];
	{ .param .b32 param0; st.param.b32 [param0+0], 0f3F800000; .param .b32 retval0;
	prototype_0 : .callprototype (.param .b32 _) _ (.param .b32 _);
	call.uni (retval0), %rd2, (param0), prototype_0; }
$L__BB0_2:
	ret;
}
.global .align 8 .u64 s[4] = {1, generic(counter)+4, 0dC002000000000000};
.section .debug_str { $L__info_string0: .b8 95, 90, 0 }
.file 1 "a.cu"
)";

TEST_CASE("a truncated text is an error or a module") {
  const std::string whole = head + varied;
  CHECK(parse(whole).functions.at(0).statements.size() == 9);
  std::size_t errors = 0;
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const std::string cut =
        whole.substr(0, bytes);  // on the heap, so that a sanitizer sees reads behind the end
    try {
      parse(cut);
    } catch (const SyntaxError&) {
      ++errors;
    }
  }
  CHECK(errors > whole.size() / 2);
}

TEST_CASE("a text with one wrong character is an error or a module") {
  const std::string whole = head + varied;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (const char wrong : {'{', '}', ';', '(', '"', '9', '%', '.', '\0', '\xff'}) {
      std::string text = whole;
      text[i] = wrong;
      try {
        parse(text);
      } catch (const SyntaxError&) {
      }
    }
  }
}

TEST_CASE("a module of 100,000 lines parses in less than a second") {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr double limit = 10;
#else
  constexpr double limit = 1;
#endif
  std::string text = head + ".entry k()\n{\n.reg .pred %p<2>;\n.reg .b32 %r<30001>;\n";
  for (int i = 0; i < 30000; ++i) {
    const std::string n = std::to_string(i);
    text += "\tadd.s32 \t%r" + n + ", %r" + std::to_string(i / 2) + ", 1;\n\t@%p1 bra \t$L" + n + ";\n$L" +
            n + ":\n";
  }
  text += "ret;\n}\n";
  const std::clock_t begin = std::clock();
  const Module module = parse(text);
  const double seconds =
      static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;  // of the processor: others may run
  CHECK(module.functions.at(0).statements.size() == 60001);
  CHECK(seconds < limit);
}

}  // namespace
}  // namespace emulator::ptx
