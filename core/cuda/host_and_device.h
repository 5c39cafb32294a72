#pragma once

/// Before a function that kernels of the CPU and of CUDA share.
#ifdef __CUDACC__
#define NEMOCUBE_HOST_AND_DEVICE __host__ __device__
#else
#define NEMOCUBE_HOST_AND_DEVICE
#endif
