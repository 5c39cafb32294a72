#include "timeline/files.h"

#include <algorithm>
#include <fstream>
#include <iomanip>
#include <istream>
#include <limits>
#include <map>
#include <ostream>
#include <set>
#include <sstream>
#include <stdexcept>

namespace emulator::timeline {
namespace {

namespace fs = std::filesystem;

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

template <class T>
T next(std::istream& in) {
  T value{};
  if (!(in >> value)) throw std::runtime_error("a record is cut off or damaged");
  return value;
}

template <class Kind>
Kind next_kind(std::istream& in, Kind last) {
  const int value = next<int>(in);
  if (value < 0 || value > static_cast<int>(last)) throw std::runtime_error("a record is damaged");
  return static_cast<Kind>(value);
}

std::string next_line(std::istream& in) {
  std::string text;
  in >> std::ws;
  if (!std::getline(in, text)) throw std::runtime_error("a record is cut off");
  return text.substr(1);  // behind the ":" that keeps an empty line from being skipped
}

std::vector<std::uint64_t> next_ids(std::istream& in) {
  std::vector<std::uint64_t> ids(next<std::size_t>(in));
  for (std::uint64_t& id : ids) id = next<std::uint64_t>(in);
  return ids;
}

void write_ids(std::ostream& out, const std::vector<std::uint64_t>& ids) {
  out << ' ' << ids.size();
  for (const std::uint64_t id : ids) out << ' ' << id;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

}  // namespace

void write_process(std::ostream& out, const Process& process) {
  out << std::setprecision(17) << "process " << process.pid << ' ' << process.rank << ' '
      << process.operations.size() << ' ' << process.threads.size() << '\n';
  for (const Operation& o : process.operations) {
    const Load& l = o.load;
    out << o.id << ' ' << o.device << ' ' << o.stream << ' ' << o.before << ' ' << static_cast<int>(l.kind)
        << ' ' << l.bytes << ' ' << l.l2_bytes << ' ' << l.tensor_multiply_adds << ' ' << l.multiply_adds
        << ' ' << l.wavefronts << ' ' << l.instructions << ' ' << l.blocks << ' ' << l.resident;
    write_ids(out, o.after);
    out << ' ' << o.transfers.size();
    for (const Transfer& t : o.transfers)
      out << ' ' << static_cast<int>(t.kind) << ' ' << t.communicator << ' ' << t.rank << ' ' << t.ranks
          << ' ' << t.source << ' ' << t.target << ' ' << t.number << ' ' << t.bytes;
    out << "\n:" << one_line(o.name) << "\n:" << one_line(o.range) << '\n';
  }
  for (const auto& [thread, steps] : process.threads) {
    out << thread << ' ' << steps.size() << '\n';
    for (const HostStep& step : steps) {
      out << static_cast<int>(step.kind);
      write_ids(out, step.operations);
      out << '\n';
    }
  }
}

Process read_process(std::istream& in) {
  if (next<std::string>(in) != "process") throw std::runtime_error("not a record of the timeline");
  Process process;
  process.pid = next<std::int64_t>(in);
  process.rank = next<int>(in);
  process.operations.resize(next<std::size_t>(in));
  const auto threads = next<std::size_t>(in);
  for (Operation& o : process.operations) {
    o.id = next<std::uint64_t>(in);
    o.device = next<int>(in);
    o.stream = next<std::uint64_t>(in);
    o.before = next<std::uint64_t>(in);
    Load& l = o.load;
    l.kind = next_kind(in, Load::Kind::exchange);
    for (double* value : {&l.bytes, &l.l2_bytes, &l.tensor_multiply_adds, &l.multiply_adds, &l.wavefronts,
                          &l.instructions, &l.blocks, &l.resident})
      *value = next<double>(in);
    o.after = next_ids(in);
    o.transfers.resize(next<std::size_t>(in));
    for (Transfer& t : o.transfers) {
      t.kind = next_kind(in, Transfer::Kind::message);
      t.communicator = next<std::uint64_t>(in);
      for (int* value : {&t.rank, &t.ranks, &t.source, &t.target}) *value = next<int>(in);
      t.number = next<std::uint64_t>(in);
      t.bytes = next<double>(in);
    }
    o.name = next_line(in);
    o.range = next_line(in);
  }
  for (std::size_t t = 0; t < threads; ++t) {
    std::vector<HostStep>& steps = process.threads[next<std::uint64_t>(in)];
    steps.resize(next<std::size_t>(in));
    for (HostStep& step : steps) {
      step.kind = next_kind(in, HostStep::Kind::wait);
      step.operations = next_ids(in);
    }
  }
  return process;
}

void save_process(const fs::path& folder, const Process& process) {
  const fs::path file = folder / std::to_string(process.pid), draft = file.string() + ".part";
  {
    std::ofstream out(draft);
    write_process(out, process);
    out.close();
    if (!out.good()) throw std::runtime_error("cannot write " + draft.string());
  }
  fs::rename(draft, file);
}

std::vector<Process> load_processes(const fs::path& folder) {
  std::vector<Process> processes;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".part") continue;
    std::ifstream in(entry.path());
    processes.push_back(read_process(in));
  }
  std::sort(processes.begin(), processes.end(), [](const Process& a, const Process& b) {
    return std::pair{a.rank, a.pid} < std::pair{b.rank, b.pid};
  });
  return processes;
}

namespace {

/// Events of a trace, one a line.
class TraceFile {
 public:
  explicit TraceFile(std::ostream& out) : out_(out) {
    out_ << std::fixed << std::setprecision(3) << "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
  }
  ~TraceFile() { out_ << "\n]}\n"; }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  void name(const char* what, std::size_t process, std::size_t thread, const std::string& name) {
    begin() << R"({"ph":"M","name":")" << what << R"(","pid":)" << process << ",\"tid\":" << thread
            << ",\"args\":{\"name\":" << quoted(name) << "}}";
  }
  /// `arguments`: members of a JSON object, or empty.
  void slice(std::size_t process, std::size_t thread, const std::string& name, double begin_s, double end_s,
             const std::string& arguments) {
    begin() << "{\"ph\":\"X\",\"name\":" << quoted(name) << ",\"pid\":" << process << ",\"tid\":" << thread
            << ",\"ts\":" << 1e6 * begin_s << ",\"dur\":" << 1e6 * (end_s - begin_s) << ",\"args\":{"
            << arguments << "}}";
  }

 private:
  std::ostream& begin() {
    out_ << (first_ ? "\n" : ",\n");
    first_ = false;
    return out_;
  }
  std::ostream& out_;
  bool first_ = true;
};

const char* name_of(HostStep::Kind kind) {
  constexpr const char* names[] = {"launch",      "product",      "NCCL call", "copy", "event",
                                   "timed event", "graph launch", "memory",    "wait"};
  return names[static_cast<int>(kind)];
}

std::string arguments_of(const Operation& o, bool critical) {
  std::ostringstream text;
  text << std::setprecision(6) << "\"operation\":" << o.id;
  if (!o.range.empty()) text << ",\"range\":" << quoted(o.range);
  double bytes = o.load.bytes;
  for (const Transfer& t : o.transfers) bytes += t.bytes;
  if (bytes > 0) text << ",\"bytes\":" << bytes;
  if (!o.transfers.empty()) text << ",\"ranks\":" << o.transfers.front().ranks;
  if (critical) text << ",\"critical\":true";
  return text.str();
}

}  // namespace

void write_trace(std::ostream& out, const std::vector<Process>& processes, const Result& result) {
  TraceFile trace(out);
  constexpr std::size_t critical_path = 0, host_offset = 1000;
  trace.name("process_name", critical_path, 0, "critical path");
  std::size_t next_process = 1;
  for (std::size_t p = 0; p < processes.size(); ++p) {
    const std::string rank = "rank " + std::to_string(processes[p].rank);
    std::map<int, std::size_t> of_device;
    std::set<std::pair<std::size_t, std::uint64_t>> streams;
    for (std::size_t i = 0; i < processes[p].operations.size(); ++i) {
      const Operation& o = processes[p].operations[i];
      const Span& span = result.operations[p][i];
      if (o.load.kind == Load::Kind::point) continue;
      const auto [device, fresh] = of_device.try_emplace(o.device, next_process);
      if (fresh) {
        trace.name("process_name", next_process++, 0, rank + ", device " + std::to_string(o.device));
      }
      if (streams.emplace(device->second, o.stream).second)
        trace.name("thread_name", device->second, o.stream, "stream " + std::to_string(o.stream));
      const std::string arguments = arguments_of(o, span.critical);
      if (o.load.kind == Load::Kind::exchange && span.begin > span.ready)
        trace.slice(device->second, o.stream, "waits for ranks: " + o.name, span.ready, span.begin,
                    arguments);
      trace.slice(device->second, o.stream, o.name, span.begin, span.end, arguments);
      if (span.critical) trace.slice(critical_path, device->second, o.name, span.begin, span.end, arguments);
    }
    std::size_t t = 0;
    for (const auto& [id, steps] : processes[p].threads) {
      const std::size_t host = host_offset + p;
      if (t == 0) trace.name("process_name", host, 0, rank + ", host");
      trace.name("thread_name", host, t, "thread " + std::to_string(t));
      for (std::size_t s = 0; s < steps.size(); ++s) {
        const Span& span = result.steps[p][t][s];
        if (span.end > span.ready)
          trace.slice(host, t, name_of(steps[s].kind), span.ready, span.end,
                      span.critical ? "\"critical\":true" : "");
      }
      ++t;
    }
  }
}

void print_summary(std::ostream& out, const Result& result, const Exposed& exposed, const Rates& rates) {
  const auto milliseconds = [](double seconds) {
    std::ostringstream text;
    text << std::fixed << std::setprecision(3) << 1e3 * seconds;
    return text.str();
  };
  out << "cuda_emulator: timeline, estimated: " << milliseconds(exposed.seconds)
      << " ms in all; communication exposes " << milliseconds(exposed.exposed) << " ms of it (at least "
      << milliseconds(exposed.least) << " by dependencies and rates)\n";
  for (const DeviceTimes& d : result.devices)
    out << "cuda_emulator:   rank " << d.rank << " device " << d.device << ", ms: computing "
        << milliseconds(d.computing) << ", only communicating " << milliseconds(d.transferring)
        << ", waiting for ranks " << milliseconds(d.waiting) << ", copying " << milliseconds(d.copying)
        << ", waiting for the host or done " << milliseconds(d.host) << '\n';
  const Critical& c = result.critical;
  out << "cuda_emulator:   longest chain, ms: computing " << milliseconds(c.computing) << ", communicating "
      << milliseconds(c.transferring) << ", copying " << milliseconds(c.copying) << ", host "
      << milliseconds(c.host) << '\n'
      << "cuda_emulator:   rates: " << rates.dram * 1e-12 << " TB/s, " << rates.tensor_flops * 1e-12
      << " TFLOP/s, of which kernels reach " << rates.kernel_share << " and products " << rates.product_share
      << "; " << rates.devices_of_node << " devices a node, links " << rates.nvlink * 1e-9 << " and "
      << rates.network * 1e-9 << " GB/s\n";
  if (result.incomplete_transfers)
    out << "cuda_emulator:   " << result.incomplete_transfers
        << " transfers lack the record of some rank, which they do not wait for\n";
}

void write_summary(std::ostream& out, const std::vector<Process>& processes, const Result& result,
                   const Exposed& exposed) {
  out << std::setprecision(9) << "{\"seconds\":" << exposed.seconds
      << ",\"exposed_seconds\":" << exposed.exposed << ",\"least_exposed_seconds\":" << exposed.least
      << ",\"incomplete_transfers\":" << result.incomplete_transfers
      << ",\"critical\":{\"computing\":" << result.critical.computing
      << ",\"communicating\":" << result.critical.transferring << ",\"copying\":" << result.critical.copying
      << ",\"host\":" << result.critical.host << "},\"devices\":[";
  const char* comma = "";
  for (const DeviceTimes& d : result.devices) {
    out << comma << "\n{\"rank\":" << d.rank << ",\"device\":" << d.device << ",\"computing\":" << d.computing
        << ",\"communicating\":" << d.transferring << ",\"waiting\":" << d.waiting
        << ",\"copying\":" << d.copying << ",\"host\":" << d.host << ",\"ranges\":{";
    struct Sum {
      double seconds = 0, begin = std::numeric_limits<double>::infinity(), end = 0;
      int operations = 0;
    };
    std::map<std::string, Sum> ranges;
    const auto p = static_cast<std::size_t>(d.process);
    for (std::size_t i = 0; i < processes[p].operations.size(); ++i) {
      const Operation& o = processes[p].operations[i];
      if (o.device != d.device || o.load.kind == Load::Kind::point || o.load.kind == Load::Kind::exchange)
        continue;
      Sum& sum = ranges[o.range];
      const Span& span = result.operations[p][i];
      sum.seconds += span.end - span.begin;
      sum.begin = std::min(sum.begin, span.begin);
      sum.end = std::max(sum.end, span.end);
      ++sum.operations;
    }
    const char* inner = "";
    for (const auto& [name, sum] : ranges) {
      out << inner << quoted(name) << ":{\"seconds\":" << sum.seconds << ",\"operations\":" << sum.operations
          << ",\"begin\":" << sum.begin << ",\"end\":" << sum.end << '}';
      inner = ",";
    }
    out << "}}";
    comma = ",";
  }
  out << "\n]}\n";
}

}  // namespace emulator::timeline
