#include "blas/stub.h"

/// Functions of libcublas that the emulator does not have.
extern "C" {
#include "blas/cublas_stubs.inc"
}
