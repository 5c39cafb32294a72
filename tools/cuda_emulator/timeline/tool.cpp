#include <exception>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string_view>

#include "timeline/files.h"

/// What `run --timeline` calls: RECORDS TRACE [RATES] when the program has ended, which prints the summary and writes the trace;
/// --check RATES before.
int main(int count, char** arguments) {
  using namespace emulator::timeline;
  try {
    if (count != 3 && count != 4) throw std::runtime_error("want RECORDS TRACE [RATES], or --check RATES");
    const bool check = std::string_view(arguments[1]) == "--check";
    Rates rates;
    if (check || count == 4) {
      const char* const file = arguments[count - 1];
      std::ifstream lines(file);
      if (!lines) throw std::runtime_error(std::string("cannot read ") + file);
      read_rates(lines, rates);
    }
    if (check) return 0;
    const std::vector<Process> processes = load_processes(arguments[1]);
    if (processes.empty()) {
      std::cerr << "cuda_emulator: no timeline: the program used no device, or ended by force\n";
      return 0;
    }
    const Result result = simulate(processes, rates);
    std::ofstream trace(arguments[2]);
    write_trace(trace, processes, result);
    trace.close();
    if (!trace) throw std::runtime_error(std::string("cannot write ") + arguments[2]);
    print_summary(std::cerr, result, exposed_communication(processes, rates), rates);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "cuda_emulator: timeline: " << error.what() << '\n';
    return 1;
  }
}
