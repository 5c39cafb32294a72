#include "timeline/recorder.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <tuple>

#include "timeline/files.h"

namespace emulator::timeline {
namespace {

struct Record {
  std::mutex mutex;
  Process process;
  std::uint64_t next_id = 1, first_id = 1;  ///< of the operations in `process`
  /// Calls that send (receive) from one rank of a communicator to another, so far.
  std::map<std::tuple<std::uint64_t, int, int, bool>, std::uint64_t> sent;
};
Record& record() {
  static Record& the = *new Record;  // threads of the library use the record to the end
  return the;
}

const char* folder() {
  static const char* const name = [] {
    const char* const value = std::getenv("CUDA_EMULATOR_TIMELINE");
    return value && *value ? value : nullptr;
  }();
  return name;
}
std::atomic<bool> finished{false};

/// Which of the processes that were started together this one is, as Open MPI, PMIx or Slurm say.
int rank_of_process() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"})
    if (const char* const value = std::getenv(variable)) return std::atoi(value);
  return 0;
}

std::uint64_t thread_number() {
  static std::atomic<std::uint64_t> count{0};
  thread_local const std::uint64_t number = count++;
  return number;
}

thread_local std::uint64_t running_operation = 0;
thread_local std::vector<std::string> ranges;  ///< open ones, each behind all that it is in

/// The operation that this thread runs, or nullptr where it belongs to no record.
Operation* running(Record& r) {
  if (running_operation < r.first_id) return nullptr;
  return &r.process.operations[running_operation - r.first_id];
}

}  // namespace

bool recording() { return folder() && !finished; }

std::uint64_t add_operation(Operation operation) {
  if (!recording()) return 0;
  Record& r = record();
  const std::lock_guard lock(r.mutex);
  operation.id = r.next_id++;
  if (!ranges.empty()) operation.range = ranges.back();
  r.process.operations.push_back(std::move(operation));
  return r.process.operations.back().id;
}

void add_step(HostStep::Kind kind, std::vector<std::uint64_t> operations) {
  if (!recording()) return;
  Record& r = record();
  const std::uint64_t thread = thread_number();
  const std::lock_guard lock(r.mutex);
  r.process.threads[thread].push_back({kind, std::move(operations)});
}

Running::Running(std::uint64_t operation) { running_operation = operation; }
Running::~Running() { running_operation = 0; }

void set_load(const Load& load) {
  if (!recording()) return;
  Record& r = record();
  const std::lock_guard lock(r.mutex);
  if (Operation* const operation = running(r)) operation->load = load;
}

void add_bytes(double bytes) {
  if (!recording()) return;
  Record& r = record();
  const std::lock_guard lock(r.mutex);
  if (Operation* const operation = running(r)) operation->load.bytes += bytes;
}

void add_product(double tensor_multiply_adds, double multiply_adds) {
  if (!recording()) return;
  Record& r = record();
  const std::lock_guard lock(r.mutex);
  Operation* const operation = running(r);
  if (!operation) return;
  operation->load.kind = Load::Kind::product;
  operation->load.tensor_multiply_adds += tensor_multiply_adds;
  operation->load.multiply_adds += multiply_adds;
}

void add_transfer(const Transfer& transfer, bool sends, const std::string& name) {
  if (!recording()) return;
  Record& r = record();
  const std::lock_guard lock(r.mutex);
  Operation* const operation = running(r);
  if (!operation) return;
  Transfer added = transfer;
  if (transfer.kind == Transfer::Kind::message) {
    added.number = ++r.sent[{transfer.communicator, transfer.source, transfer.target, sends}];
  }
  operation->load.kind = Load::Kind::exchange;
  if (operation->transfers.empty()) {
    operation->name = name;
  } else if (operation->transfers.size() < 4) {
    operation->name += "; " + name;
  }
  operation->transfers.push_back(added);
}

void push_range(const char* name) {
  if (folder()) ranges.push_back((ranges.empty() ? "" : ranges.back() + " > ") + (name ? name : ""));
}
void pop_range() {
  if (!ranges.empty()) ranges.pop_back();
}

void restart() {
  if (!folder()) return;
  Record& r = record();
  const std::lock_guard lock(r.mutex);
  r.process.operations.clear();
  r.process.threads.clear();
  r.first_id = r.next_id;
  r.sent.clear();
  finished = false;
}

void finish() {
  if (!recording()) return;
  Record& r = record();
  const std::lock_guard lock(r.mutex);
  finished = true;
  r.process.pid = getpid();
  r.process.rank = rank_of_process();
  try {
    save_process(folder(), r.process);
  } catch (const std::exception& error) {
    std::cerr << "cuda_emulator: timeline: " << error.what() << '\n';
  }
}

std::string summary() {
  if (!folder()) throw std::runtime_error("CUDA_EMULATOR_TIMELINE names no folder of records");
  Rates rates;
  if (const char* const file = std::getenv("CUDA_EMULATOR_RATES"); file && *file) {
    std::ifstream lines(file);
    if (!lines) throw std::runtime_error(std::string("cannot read ") + file);
    read_rates(lines, rates);
  }
  const std::vector<Process> processes = load_processes(folder());
  std::ostringstream text;
  write_summary(text, processes, simulate(processes, rates), exposed_communication(processes, rates));
  return text.str();
}

}  // namespace emulator::timeline
