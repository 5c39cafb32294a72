#pragma once
#include <cstdio>
#include <cstdlib>

/// A function that exists so that programs which mention it start: calling it ends the program with its name.
#define EMULATOR_STUB(name)                                                                   \
  void name() {                                                                               \
    std::fprintf(stderr, "cuda_emulator: error: not-supported: " #name " is not emulated\n"); \
    std::abort();                                                                             \
  }
