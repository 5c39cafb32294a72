// Device code in two units that call each other (-rdc).
#include "two_units.h"

#include "program.h"

static __device__ int own = 1;
static __device__ int own_function(int value) { return value * 10 + own; }

static __global__ void kernel(int* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  Derived derived;
  Base base;
  const Base& object = i % 2 ? static_cast<const Base&>(derived) : base;
  out[i] = own_function(from_other_unit(i)) + object.value(i) + chosen_function(i % 10);
}

bool calls_between_units() {
  const int n = 200;
  DeviceVector<int> out(n), other(n);
  kernel<<<4, 64>>>(out.data(), n);
  launch_in_other_unit(other.data(), n);
  const std::vector<int> found = out.host(), found_other = other.host();
  int counter = 0;
  CHECK_CUDA(cudaMemcpyFromSymbol(&counter, shared_counter, sizeof counter));
  for (int i = 0; i < n; ++i) {
    const int x = i % 10, wanted = 10 * (i + 1000 + 5 + i % 4) + 1 + (i % 2 ? 2 * i : i) + x * x * x;
    if (found[i] != wanted || found_other[i] != 1000 - i) return false;
  }
  return counter == 10 + n;
}

bool tables_of_the_other_unit() {
  const int table[4] = {50, 60, 70, 80};
  CHECK_CUDA(cudaMemcpyToSymbol(shared_table, table, sizeof table));
  DeviceVector<int> out(4);
  kernel<<<1, 4>>>(out.data(), 4);
  const std::vector<int> found = out.host();
  for (int i = 0; i < 4; ++i)
    if (found[i] != 10 * (i + 1000 + table[i]) + 1 + (i % 2 ? 2 * i : i) + i * i * i) return false;
  return true;
}

int main(int argc, char** argv) {
  return run_programs(
      {{"calls_between_units", calls_between_units}, {"tables_of_the_other_unit", tables_of_the_other_unit}},
      argc, argv);
}
