#pragma once
#include "instructions/form.h"

/// The decoders behind the rows of the instruction table (table.cpp), by the file that holds them.
namespace emulator {

// Integer arithmetic: integer.cpp
Execute decode_integer_add(Form& form);
Execute decode_integer_sub(Form& form);
Execute decode_integer_mul(Form& form);
Execute decode_integer_mad(Form& form);
Execute decode_mul24(Form& form);
Execute decode_mad24(Form& form);
Execute decode_sad(Form& form);
Execute decode_integer_div(Form& form);
Execute decode_rem(Form& form);
Execute decode_integer_abs(Form& form);
Execute decode_integer_neg(Form& form);
Execute decode_integer_min(Form& form);
Execute decode_integer_max(Form& form);
Execute decode_dp4a(Form& form);
Execute decode_dp2a(Form& form);
Execute decode_addc(Form& form);
Execute decode_subc(Form& form);
Execute decode_madc(Form& form);
Execute decode_vabsdiff2(Form& form);
Execute decode_vabsdiff4(Form& form);

// Bits: bits.cpp
Execute decode_popc(Form& form);
Execute decode_clz(Form& form);
Execute decode_bfind(Form& form);
Execute decode_fns(Form& form);
Execute decode_brev(Form& form);
Execute decode_bfe(Form& form);
Execute decode_bfi(Form& form);
Execute decode_szext(Form& form);
Execute decode_bmsk(Form& form);
Execute decode_and(Form& form);
Execute decode_or(Form& form);
Execute decode_xor(Form& form);
Execute decode_not(Form& form);
Execute decode_cnot(Form& form);
Execute decode_lop3(Form& form);
Execute decode_shf(Form& form);
Execute decode_shl(Form& form);
Execute decode_shr(Form& form);
Execute decode_prmt(Form& form);

// f32 and f64: floating.cpp
Execute decode_float_add(Form& form);
Execute decode_float_sub(Form& form);
Execute decode_float_mul(Form& form);
Execute decode_float_fma(Form& form);
Execute decode_float_div(Form& form);
Execute decode_float_abs(Form& form);
Execute decode_float_neg(Form& form);
Execute decode_float_min(Form& form);
Execute decode_float_max(Form& form);
Execute decode_rcp(Form& form);
Execute decode_sqrt(Form& form);
Execute decode_rsqrt(Form& form);
Execute decode_sin(Form& form);
Execute decode_cos(Form& form);
Execute decode_lg2(Form& form);
Execute decode_float_ex2(Form& form);
Execute decode_float_tanh(Form& form);
Execute decode_testp(Form& form);
Execute decode_copysign(Form& form);

// f16, bf16 and their pairs: half.cpp
Execute decode_half_add(Form& form);
Execute decode_half_sub(Form& form);
Execute decode_half_mul(Form& form);
Execute decode_half_fma(Form& form);
Execute decode_half_neg(Form& form);
Execute decode_half_abs(Form& form);
Execute decode_half_min(Form& form);
Execute decode_half_max(Form& form);
Execute decode_half_tanh(Form& form);
Execute decode_half_ex2(Form& form);

// Comparison and selection: compare.cpp
Execute decode_set(Form& form);
Execute decode_setp(Form& form);
Execute decode_selp(Form& form);
Execute decode_slct(Form& form);

// Conversion: convert.cpp
Execute decode_cvt(Form& form);

// Moves and addresses: move.cpp
Execute decode_mov(Form& form);
Execute decode_cvta(Form& form);
Execute decode_isspacep(Form& form);
Execute decode_alloca(Form& form);
Execute decode_stacksave(Form& form);
Execute decode_stackrestore(Form& form);

// Control flow: control.cpp
Execute decode_bra(Form& form);
Execute decode_brx(Form& form);
Execute decode_call(Form& form);
Execute decode_ret(Form& form);
Execute decode_exit(Form& form);
Execute decode_trap(Form& form);
Execute decode_brkpt(Form& form);
Execute decode_nanosleep(Form& form);
Execute decode_nothing(Form& form);
Execute decode_griddepcontrol(Form& form);

// Loads and stores: memory.cpp
Execute decode_ld(Form& form);
Execute decode_ldu(Form& form);
Execute decode_st(Form& form);
Execute decode_prefetch(Form& form);
Execute decode_applypriority(Form& form);
Execute decode_discard(Form& form);

// Atomics and fences: atomic.cpp
Execute decode_atom(Form& form);
Execute decode_red(Form& form);
Execute decode_membar(Form& form);
Execute decode_fence(Form& form);

// Asynchronous copies: async_copy.cpp
Execute decode_cp(Form& form);

// Barriers: barrier.cpp
Execute decode_bar(Form& form);

// Warp operations: warp.cpp
Execute decode_shfl(Form& form);
Execute decode_vote(Form& form);
Execute decode_match(Form& form);
Execute decode_activemask(Form& form);
Execute decode_redux(Form& form);
Execute decode_elect(Form& form);

// Matrices: fragments.cpp (ldmatrix ...), mma.cpp, wmma.cpp
Execute decode_ldmatrix(Form& form);
Execute decode_stmatrix(Form& form);
Execute decode_movmatrix(Form& form);
Execute decode_mma(Form& form);
Execute decode_wmma(Form& form);

// Barrier objects: mbarrier.cpp
Execute decode_mbarrier(Form& form);

}  // namespace emulator
