#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "timeline/schedule.h"

/// What the process records for its timeline. All functions are safe to call from any thread, and do nothing while nothing is
/// recorded.
namespace emulator::timeline {

/// Whether CUDA_EMULATOR_TIMELINE names a folder for records, and no end of the record was asked for.
bool recording();

/// Adds an operation and returns its id; 0 while nothing is recorded. Its range is the calling thread's.
std::uint64_t add_operation(Operation operation);
/// The calling thread has sent the operations by a call of a kind, or has waited for them.
void add_step(HostStep::Kind kind, std::vector<std::uint64_t> operations);

/// What the thread runs now: the functions below say more of that operation.
class Running {
 public:
  explicit Running(std::uint64_t operation);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
};
void set_load(const Load& load);
void add_bytes(double bytes);
/// A product of cuBLAS: multiply-adds on tensor cores, and off them.
void add_product(double tensor_multiply_adds, double multiply_adds);
/// NCCL. `sends`: of a message, whether this call is the sender's; its number is counted here.
void add_transfer(const Transfer& transfer, bool sends, const std::string& name);

/// NVTX ranges of the calling thread.
void push_range(const char* name);
void pop_range();

/// The record begins anew: what comes now begins at time 0.
void restart();
/// Writes the record; nothing more is recorded until restart().
void finish();

/// Summary of the records of all processes as JSON (files.h). Throws std::runtime_error.
std::string summary();

}  // namespace emulator::timeline
