#include "instructions/decoders.h"
#include "instructions/form.h"

namespace emulator {
namespace {

using enum TypeGroup;

// One row an opcode; two or three where integer, f32 / f64 and 16-bit floating forms are different instructions.
constexpr InstructionEntry table[] = {
    // Integer arithmetic: integer.cpp
    {"add", integer, decode_integer_add, "9.7.1.1"},
    {"sub", integer, decode_integer_sub, "9.7.1.2"},
    {"mul", integer, decode_integer_mul, "9.7.1.3"},
    {"mad", integer, decode_integer_mad, "9.7.1.4"},
    {"mul24", integer, decode_mul24, "9.7.1.5"},
    {"mad24", integer, decode_mad24, "9.7.1.6"},
    {"sad", integer, decode_sad, "9.7.1.7"},
    {"div", integer, decode_integer_div, "9.7.1.8"},
    {"rem", integer, decode_rem, "9.7.1.9"},
    {"abs", integer, decode_integer_abs, "9.7.1.10"},
    {"neg", integer, decode_integer_neg, "9.7.1.11"},
    {"min", integer, decode_integer_min, "9.7.1.12"},
    {"max", integer, decode_integer_max, "9.7.1.13"},
    {"dp4a", any, decode_dp4a, "9.7.1.23"},
    {"dp2a", any, decode_dp2a, "9.7.1.24"},
    {"addc", any, decode_addc, "9.7.2.2"},
    {"subc", any, decode_subc, "9.7.2.4"},
    {"madc", any, decode_madc, "9.7.2.6"},
    {"vabsdiff2", any, decode_vabsdiff2, "9.7.17"},
    {"vabsdiff4", any, decode_vabsdiff4, "9.7.17"},
    // Bits: bits.cpp
    {"popc", any, decode_popc, "9.7.1.14"},
    {"clz", any, decode_clz, "9.7.1.15"},
    {"bfind", any, decode_bfind, "9.7.1.16"},
    {"fns", any, decode_fns, "9.7.1.17"},
    {"brev", any, decode_brev, "9.7.1.18"},
    {"bfe", any, decode_bfe, "9.7.1.19"},
    {"bfi", any, decode_bfi, "9.7.1.20"},
    {"szext", any, decode_szext, "9.7.1.21"},
    {"bmsk", any, decode_bmsk, "9.7.1.22"},
    {"and", any, decode_and, "9.7.8.1"},
    {"or", any, decode_or, "9.7.8.2"},
    {"xor", any, decode_xor, "9.7.8.3"},
    {"not", any, decode_not, "9.7.8.4"},
    {"cnot", any, decode_cnot, "9.7.8.5"},
    {"lop3", any, decode_lop3, "9.7.8.6"},
    {"shf", any, decode_shf, "9.7.8.7"},
    {"shl", any, decode_shl, "9.7.8.8"},
    {"shr", any, decode_shr, "9.7.8.9"},
    {"prmt", any, decode_prmt, "9.7.9.7"},
    // f32 and f64: floating.cpp
    {"add", floating, decode_float_add, "9.7.3.3"},
    {"sub", floating, decode_float_sub, "9.7.3.4"},
    {"mul", floating, decode_float_mul, "9.7.3.5"},
    {"fma", floating, decode_float_fma, "9.7.3.6"},
    {"mad", floating, decode_float_fma, "9.7.3.7"},
    {"div", floating, decode_float_div, "9.7.3.8"},
    {"abs", floating, decode_float_abs, "9.7.3.9"},
    {"neg", floating, decode_float_neg, "9.7.3.10"},
    {"min", floating, decode_float_min, "9.7.3.11"},
    {"max", floating, decode_float_max, "9.7.3.12"},
    {"rcp", floating, decode_rcp, "9.7.3.13"},
    {"sqrt", floating, decode_sqrt, "9.7.3.15"},
    {"rsqrt", floating, decode_rsqrt, "9.7.3.16"},
    {"sin", floating, decode_sin, "9.7.3.18"},
    {"cos", floating, decode_cos, "9.7.3.19"},
    {"lg2", floating, decode_lg2, "9.7.3.20"},
    {"ex2", floating, decode_float_ex2, "9.7.3.21"},
    {"tanh", floating, decode_float_tanh, "9.7.3.22"},
    {"testp", floating, decode_testp, "9.7.3.1"},
    {"copysign", floating, decode_copysign, "9.7.3.2"},
    // f16, bf16 and their pairs: half.cpp
    {"add", half, decode_half_add, "9.7.4.1"},
    {"sub", half, decode_half_sub, "9.7.4.2"},
    {"mul", half, decode_half_mul, "9.7.4.3"},
    {"fma", half, decode_half_fma, "9.7.4.4"},
    {"neg", half, decode_half_neg, "9.7.4.5"},
    {"abs", half, decode_half_abs, "9.7.4.6"},
    {"min", half, decode_half_min, "9.7.4.7"},
    {"max", half, decode_half_max, "9.7.4.8"},
    {"tanh", half, decode_half_tanh, "9.7.4.9"},
    {"ex2", half, decode_half_ex2, "9.7.4.10"},
    // Comparison and selection: compare.cpp
    {"set", any, decode_set, "9.7.6.1"},
    {"setp", any, decode_setp, "9.7.6.2"},
    {"selp", any, decode_selp, "9.7.6.3"},
    {"slct", any, decode_slct, "9.7.6.4"},
    // Conversion: convert.cpp
    {"cvt", any, decode_cvt, "9.7.9.21"},
    // Moves and addresses: move.cpp
    {"mov", any, decode_mov, "9.7.9.1"},
    {"cvta", any, decode_cvta, "9.7.9.20"},
    {"isspacep", any, decode_isspacep, "9.7.9.19"},
    {"alloca", any, decode_alloca, "9.7.16.3"},
    {"stacksave", any, decode_stacksave, "9.7.16.1"},
    {"stackrestore", any, decode_stackrestore, "9.7.16.2"},
    // Control flow: control.cpp
    {"bra", any, decode_bra, "9.7.12.3"},
    {"brx", any, decode_brx, "9.7.12.4"},
    {"call", any, decode_call, "9.7.12.5"},
    {"ret", any, decode_ret, "9.7.12.6"},
    {"exit", any, decode_exit, "9.7.12.7"},
    {"trap", any, decode_trap, "9.7.19.6"},
    {"brkpt", any, decode_brkpt, "9.7.19.1"},
    {"nanosleep", any, decode_nanosleep, "9.7.19.2"},
    {"pmevent", any, decode_nothing, "9.7.19.3"},
    {"griddepcontrol", any, decode_griddepcontrol, "9.7.13.13"},
    // Loads and stores: memory.cpp
    {"ld", any, decode_ld, "9.7.9.8"},
    {"ldu", any, decode_ldu, "9.7.9.10"},
    {"st", any, decode_st, "9.7.9.11"},
    {"prefetch", any, decode_prefetch, "9.7.9.15"},
    {"prefetchu", any, decode_prefetch, "9.7.9.15"},
    {"applypriority", any, decode_applypriority, "9.7.9.16"},
    {"discard", any, decode_discard, "9.7.9.17"},
    // Atomics and fences: atomic.cpp
    {"atom", any, decode_atom, "9.7.13.6"},
    {"red", any, decode_red, "9.7.13.7"},
    {"membar", any, decode_membar, "9.7.13.5"},
    {"fence", any, decode_fence, "9.7.13.5"},
    // Asynchronous copies: async_copy.cpp
    {"cp", any, decode_cp, "9.7.9.25"},
    // Barriers: barrier.cpp
    {"bar", any, decode_bar, "9.7.13.1"},
    {"barrier", any, decode_bar, "9.7.13.1"},
    // Warp operations: warp.cpp
    {"shfl", any, decode_shfl, "9.7.9.6"},
    {"vote", any, decode_vote, "9.7.13.9"},
    {"match", any, decode_match, "9.7.13.10"},
    {"activemask", any, decode_activemask, "9.7.13.11"},
    {"redux", any, decode_redux, "9.7.13.12"},
    {"elect", any, decode_elect, "9.7.13.14"},
    // Matrices: fragments.cpp (ldmatrix ...), mma.cpp, wmma.cpp
    {"ldmatrix", any, decode_ldmatrix, "9.7.14.5.15"},
    {"stmatrix", any, decode_stmatrix, "9.7.14.5.16"},
    {"movmatrix", any, decode_movmatrix, "9.7.14.5.17"},
    {"mma", any, decode_mma, "9.7.14.5.14"},
    {"wmma", any, decode_wmma, "9.7.14.4"},
    // Barrier objects: mbarrier.cpp
    {"mbarrier", any, decode_mbarrier, "9.7.13.15"},
};

}  // namespace

const InstructionEntry* find_instruction(std::string_view opcode, TypeGroup group) {
  for (const InstructionEntry& entry : table)
    if (entry.opcode == opcode && (entry.group == any || entry.group == group)) return &entry;
  return nullptr;
}

}  // namespace emulator
