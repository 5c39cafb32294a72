#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>

/// What the emulator's libcudart offers to its libcublas, libcublasLt and libnccl. Plain C, so that the libraries share no C++ state.
extern "C" {

/// Results of a work function.
enum { cuda_emulator_done = 0, cuda_emulator_again = 1, cuda_emulator_failed = 2 };

/// Puts work into a stream (into its graph while the stream is captured). `run(data, operation)` is called in stream order, perhaps on another
/// thread, perhaps many times for a graph; `again` lets other streams go on and calls the function once more later (waiting for a
/// peer); `failed` gives the device the error cudaErrorLaunchFailure. `drop(data)` is called once, when the work is never run again,
/// also when the call itself fails.
/// Returns a cudaError. `what` names the work in messages ("cublasSgemm").
int cuda_emulator_enqueue(cudaStream_t stream, const char* what, int (*run)(void* data, unsigned operation),
                          void (*drop)(void* data), void* data);

/// Host address of device, managed, pinned memory; NULL (and a report naming `what`) when [pointer, pointer + bytes) is not in one live
/// allocation. Ordinary host memory is not accepted.
void* cuda_emulator_host(const void* pointer, size_t bytes, const char* what);
/// Judges and records that `operation` reads (0) or writes (1) the range; a write marks the bytes written.
void cuda_emulator_touch(unsigned operation, const void* pointer, size_t bytes, int write, const char* what);
/// severity: 0 error, 1 warning, 2 note.
void cuda_emulator_report(int severity, const char* kind, const char* message);
/// For the timeline, inside of a work function: multiply-adds of a product, on tensor cores and off them. What the function touches
/// are its bytes.
void cuda_emulator_product(double tensor_multiply_adds, double multiply_adds);
/// For the timeline, inside of a work function: what NCCL moves. `kind`: timeline::Transfer::Kind; `source`, `target`, `sends`: of
/// a message, whose number is counted here; `number`: of a collective.
void cuda_emulator_transfer(int kind, unsigned long long communicator, int rank, int ranks, int source,
                            int target, int sends, unsigned long long number, double bytes, const char* name);
/// The timeline's summary of all processes as JSON, of which at most `size - 1` bytes and an end are written. Returns the bytes
/// that it has, or -1 where nothing was recorded (a message is on standard error).
long cuda_emulator_timeline(char* text, size_t size);
/// Device (ordinal) that the stream belongs to; the calling thread's current device for NULL.
int cuda_emulator_device_of(cudaStream_t stream);
/// CUDA_EMULATOR_THREADS or the cores: host threads that library calls may use.
int cuda_emulator_threads(void);
}
