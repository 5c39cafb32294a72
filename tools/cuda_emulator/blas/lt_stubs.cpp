#include "blas/stub.h"

/// Functions of libcublasLt that the emulator does not have.
extern "C" {
#include "blas/lt_stubs.inc"
}
