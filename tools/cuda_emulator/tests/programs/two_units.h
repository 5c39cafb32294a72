#pragma once

/// What two_units.cu uses of the other unit, two_units_other.cu. The linker of device code joins them (-rdc).

extern __device__ int shared_counter;
extern __constant__ int shared_table[4];
__device__ int from_other_unit(int value);
class Base {
 public:
  __device__ virtual int value(int x) const;
};
class Derived : public Base {
 public:
  __device__ int value(int x) const override;
};
using Function = int (*)(int);
extern __device__ Function chosen_function;
void launch_in_other_unit(int* out, int n);
