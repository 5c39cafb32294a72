#pragma once

/// Before a loop of a kernel: promises the compiler that no iteration depends on results of another one,
/// although operands may be the same memory, so that the compiler may vectorise the loop.
#if defined(__clang__)
#define NEMOCUBE_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define NEMOCUBE_IVDEP _Pragma("GCC ivdep")
#endif
