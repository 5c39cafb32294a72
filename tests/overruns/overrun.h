#pragma once

/// What AddressSanitizer and UndefinedBehaviorSanitizer must report. Each library of a sanitized build holds
/// mistakes of its own (library.cpp.in); main.cpp, which is compiled without sanitizers as test files are,
/// makes them happen.
namespace nemocube::overruns {

/// An inline function of a library. A program that is not sanitized has a definition of its own, and must run
/// the library's.
[[gnu::noinline]] inline int element(const int* values, int index) { return values[index]; }

#define NEMOCUBE_MISTAKES(library)                           \
  /** Reads behind the end of `size` numbers on the heap. */ \
  int overrun_##library(int size);                           \
  /** Adds `one` to the largest int. */                      \
  int overflow_##library(int one);
NEMOCUBE_MISTAKES(core)
NEMOCUBE_MISTAKES(ops)
NEMOCUBE_MISTAKES(model)
NEMOCUBE_MISTAKES(parallel)
NEMOCUBE_MISTAKES(data)
NEMOCUBE_MISTAKES(train)
#undef NEMOCUBE_MISTAKES

}  // namespace nemocube::overruns
