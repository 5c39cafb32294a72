#include "two_units.h"

__device__ int shared_counter = 10;
__constant__ int shared_table[4] = {5, 6, 7, 8};
// Both units have a function and a variable of these names.
static __device__ int own = 1000;
static __device__ int own_function(int value) { return value + own; }
__device__ int from_other_unit(int value) {
  atomicAdd(&shared_counter, 1);
  return own_function(value) + shared_table[value & 3];
}
__device__ int Base::value(int x) const { return x; }
__device__ int Derived::value(int x) const { return 2 * x; }
static __device__ __noinline__ int cube(int value) { return value * value * value; }
__device__ Function chosen_function = cube;

static __global__ void kernel(int* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = own_function(-i);
}
void launch_in_other_unit(int* out, int n) { kernel<<<(n + 31) / 32, 32>>>(out, n); }
