#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "timeline/files.h"
#include "timeline/program.h"

/// What `run --timeline` calls: TRACE RATES PROGRAM [ARGUMENT]... runs the program, whose processes leave their records in a folder
/// beside the trace, then writes the trace and prints the summary. RATES: a file, or empty. --check RATES only reads the file.
namespace {

using namespace emulator::timeline;
namespace fs = std::filesystem;

Rates rates_of(const std::string& file) {
  Rates rates;
  if (file.empty()) return rates;
  std::ifstream lines(file);
  if (!lines) throw std::runtime_error("cannot read " + file);
  read_rates(lines, rates);
  return rates;
}

/// A folder that lives as long as the object.
class Folder {
 public:
  explicit Folder(std::string pattern) {
    if (!mkdtemp(pattern.data())) throw std::runtime_error("cannot make the folder " + pattern);
    path_ = fs::absolute(pattern);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void write(const std::vector<Process>& processes, const Rates& rates, const std::string& file) {
  const Result result = simulate(processes, rates);
  std::ofstream trace(file);
  write_trace(trace, processes, result);
  trace.close();
  if (!trace) throw std::runtime_error("cannot write " + file);
  print_summary(std::cerr, result, exposed_communication(processes, rates), rates);
}

}  // namespace

int main(int count, char** words) {
  int status = 0;
  try {
    const bool check = count == 3 && std::string_view(words[1]) == "--check";
    if (!check && count < 4) throw std::runtime_error("want TRACE RATES PROGRAM, or --check RATES");
    const std::string trace = words[1];
    const Rates rates = rates_of(words[2]);
    if (check) return 0;
    const Folder records(trace + ".records.XXXXXX");
    setenv("CUDA_EMULATOR_TIMELINE", records.path().c_str(), 1);
    status = run_program(words + 3);
    const std::vector<Process> processes = load_processes(records.path());
    if (processes.empty())
      std::cerr << "cuda_emulator: no timeline: the program used no device, or ended by force\n";
    else
      write(processes, rates, trace);
    return status;
  } catch (const std::exception& error) {
    std::cerr << "cuda_emulator: timeline: " << error.what() << '\n';
    return status ? status : 1;
  }
}
