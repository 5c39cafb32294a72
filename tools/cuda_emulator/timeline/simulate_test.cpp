#include "timeline/simulate.h"

#include <doctest/doctest.h>

#include <sstream>
#include <stdexcept>

#include "timeline/files.h"

using namespace emulator::timeline;

namespace {

/// Whole numbers, so that the times of a case can be seen from it: a byte of DRAM, a call of the host and a byte of a link take
/// one second each; nothing takes less than it takes.
Rates plain() {
  Rates r;
  r.dram = r.l2 = r.tensor_flops = r.flops = r.clock = r.schedulers = r.host_link = 1;
  r.multiprocessors = 4;
  r.kernel_share = r.product_share = 1;
  r.kernel_seconds = 0;
  r.nvlink = r.network = 1;
  r.nvlink_seconds = r.network_seconds = 0;
  r.launch = r.product_call = r.exchange_call = r.copy_call = r.event = r.timed_event = r.graph_call =
      r.memory_call = 0;
  return r;
}

Load kernel(double seconds, double blocks = 4) {
  Load load;
  load.kind = Load::Kind::kernel;
  load.instructions = seconds * 4;  // evenly on 4 multiprocessors, one a second each
  load.blocks = blocks;
  return load;
}

Load local(double bytes) {
  Load load;
  load.kind = Load::Kind::local;
  load.bytes = bytes;
  return load;
}

/// A process with one device that sends operations one after the other.
class Program {
 public:
  explicit Program(int rank = 0) {
    process_.pid = 100 + rank;
    process_.rank = rank;
  }
  std::uint64_t send(std::uint64_t stream, const Load& load, std::vector<std::uint64_t> after = {},
                     HostStep::Kind call = HostStep::Kind::launch) {
    Operation o;
    o.id = process_.operations.size() + 1;
    o.stream = stream;
    o.name = "operation " + std::to_string(o.id);
    o.load = load;
    o.after = std::move(after);
    for (const Operation& other : process_.operations)
      if (other.stream == stream) o.before = other.id;
    process_.operations.push_back(o);
    process_.threads[0].push_back({call, {o.id}});
    return o.id;
  }
  /// A point in the stream that waits for an operation.
  std::uint64_t wait_in(std::uint64_t stream, std::uint64_t operation) {
    return send(stream, {}, {operation}, HostStep::Kind::event);
  }
  std::uint64_t exchange(std::uint64_t stream, std::vector<Transfer> transfers) {
    Load load;
    load.kind = Load::Kind::exchange;
    const std::uint64_t id = send(stream, load, {}, HostStep::Kind::exchange);
    process_.operations.back().transfers = std::move(transfers);
    return id;
  }
  std::uint64_t reduce(std::uint64_t stream, int ranks, std::uint64_t number, double bytes) {
    Transfer t;
    t.kind = Transfer::Kind::reduce;
    t.rank = process_.rank;
    t.ranks = ranks;
    t.number = number;
    t.bytes = bytes;
    return exchange(stream, {t});
  }
  void host_waits(std::vector<std::uint64_t> operations) {
    process_.threads[0].push_back({HostStep::Kind::wait, std::move(operations)});
  }
  const Process& process() const { return process_; }
  operator Process() const { return process_; }

 private:
  Process process_;
};

Transfer message(int rank, int source, int target, double bytes) {
  Transfer t;
  t.rank = rank;
  t.ranks = 3;
  t.source = source;
  t.target = target;
  t.number = 1;
  t.bytes = bytes;
  return t;
}

void check_span(const Span& span, double begin, double end) {
  CHECK(span.begin == doctest::Approx(begin));
  CHECK(span.end == doctest::Approx(end));
}

}  // namespace

TEST_CASE("timeline: a stream does one thing after the other, behind the host that sends them") {
  Rates rates = plain();
  rates.launch = 2;
  Program program;
  for (int i = 0; i < 3; ++i) program.send(1, kernel(1));
  for (int i = 0; i < 2; ++i) program.send(1, kernel(5));
  const Result result = simulate({program}, rates);
  const std::vector<Span>& spans = result.operations[0];
  // Sent at 2, 4, 6, 8, 10.
  check_span(spans[0], 2, 3);
  check_span(spans[1], 4, 5);
  check_span(spans[2], 6, 7);
  check_span(spans[3], 8, 13);
  check_span(spans[4], 13, 18);
  CHECK(result.seconds == doctest::Approx(18));
  const DeviceTimes& device = result.devices.at(0);
  CHECK(device.computing == doctest::Approx(13));
  CHECK(device.host == doctest::Approx(5));
  // The longest chain: four calls, then two kernels.
  CHECK(result.critical.host == doctest::Approx(8));
  CHECK(result.critical.computing == doctest::Approx(10));
  CHECK(spans[3].critical);
  CHECK_FALSE(spans[2].critical);
}

TEST_CASE(
    "timeline: kernels of two streams run beside each other where the device has room, else they share it") {
  Program small, large;
  for (const std::uint64_t stream : {1, 2}) {
    small.send(stream, kernel(4, 2));
    large.send(stream, kernel(4, 4));
  }
  // Two of four multiprocessors have all the work, so a kernel of two blocks takes twice as long.
  CHECK(simulate({small}, plain()).seconds == doctest::Approx(8));
  CHECK(simulate({large}, plain()).seconds == doctest::Approx(8));
  CHECK(simulate({large}, plain()).operations[0][0].end == doctest::Approx(8));
}

TEST_CASE("timeline: what moves bytes shares DRAM, and a shorter one leaves the rest to the longer") {
  Program program;
  program.send(1, local(3));
  program.send(2, local(9));
  const Result result = simulate({program}, plain());
  CHECK(result.operations[0][0].end == doctest::Approx(6));
  CHECK(result.operations[0][1].end == doctest::Approx(12));
}

TEST_CASE("timeline: events order streams, and a thread that waits sends later") {
  Program program;
  const std::uint64_t first = program.send(1, kernel(3));
  const std::uint64_t event = program.send(1, {}, {}, HostStep::Kind::event);
  program.send(1, kernel(10, 1));  // 40 seconds on one multiprocessor
  program.wait_in(2, event);
  const std::uint64_t second = program.send(2, kernel(2, 1));
  program.host_waits({second});
  const std::uint64_t third = program.send(3, kernel(1, 1));
  const Result result = simulate({program}, plain());
  const auto& spans = result.operations[0];
  CHECK(first == 1);
  check_span(spans[second - 1], 3, 11);
  check_span(spans[third - 1], 11, 15);
  CHECK(result.seconds == doctest::Approx(43));
}

TEST_CASE("timeline: the longest bound of a kernel counts, of its busiest multiprocessor") {
  Rates rates = plain();
  rates.kernel_share = 0.5;
  Load load = kernel(0, 5);  // 5 blocks on 4 multiprocessors: one has two
  load.multiply_adds = 10;
  load.bytes = 3;
  load.l2_bytes = 4;
  CHECK(need_of(load, {}, rates).seconds == doctest::Approx(2 * 10 * 2 * (8.0 / 5)));
  CHECK(need_of(load, {.bytes = 100}, rates).seconds == doctest::Approx(600));
  // Three times the work in 15 blocks: the busiest has 4 of them.
  CHECK(need_of(load, {.operations = 3}, rates).seconds == doctest::Approx(2 * 3 * 10 * 2 * (16.0 / 15)));
  load.resident = 2;
  CHECK(need_of(load, {}, rates).multiprocessors == doctest::Approx(5.0 / 8));
  rates.kernel_seconds = 1000;
  CHECK(need_of(load, {}, rates).seconds == doctest::Approx(1000));
}

TEST_CASE("timeline: a collective begins when its last rank is there") {
  Program early(0), late(1);
  early.send(1, kernel(2));
  early.reduce(1, 2, 1, 5);
  late.send(1, kernel(7));
  late.reduce(1, 2, 1, 5);
  const Result result = simulate({early, late}, plain());
  for (const auto& spans : result.operations) check_span(spans[1], 7, 12);
  CHECK(result.operations[0][1].ready == doctest::Approx(2));
  CHECK(result.devices[0].waiting == doctest::Approx(5));
  CHECK(result.devices[0].transferring == doctest::Approx(5));
  CHECK(result.devices[1].waiting == doctest::Approx(0));
  CHECK(result.critical.computing == doctest::Approx(7));
  CHECK(result.critical.transferring == doctest::Approx(5));
  CHECK_FALSE(result.operations[0][0].critical);
  CHECK(result.incomplete_transfers == 0);
  CHECK(simulate({early}, plain()).incomplete_transfers == 1);
}

TEST_CASE("timeline: bytes and latency of collectives, inside of a node and between nodes") {
  Rates rates = plain();
  rates.nvlink = 4;
  rates.network = 1;
  Transfer t;
  t.ranks = 8;
  t.bytes = 16;
  const auto seconds = [&](Transfer::Kind kind, int of_node) {
    t.kind = kind;
    return link_seconds(t, {}, of_node, rates);
  };
  CHECK(seconds(Transfer::Kind::all_reduce, 8) == doctest::Approx(2 * 7.0 / 8 * 16 / 4));
  CHECK(seconds(Transfer::Kind::all_gather, 8) == doctest::Approx(7 * 16.0 / 4));
  CHECK(seconds(Transfer::Kind::broadcast, 8) == doctest::Approx(4));
  // Two nodes of four: a ring uses four interfaces of a node; to other nodes each rank sends by its own.
  CHECK(seconds(Transfer::Kind::reduce_scatter, 4) == doctest::Approx(7 * 16.0 / 4));
  CHECK(seconds(Transfer::Kind::reduce_scatter, 2) == doctest::Approx(7 * 16.0 / 2));
  CHECK(seconds(Transfer::Kind::all_to_all, 4) == doctest::Approx(4 * 16.0));
  CHECK(link_seconds(t, {.bytes = 3}, 8, rates) ==
        doctest::Approx(3 * seconds(Transfer::Kind::all_to_all, 8)));
  // Latency, and which link it is, by how many devices a node has.
  rates.nvlink_seconds = 0.5;
  rates.network_seconds = 3;
  Program a(0), b(1);
  for (Program* p : {&a, &b}) p->reduce(1, 2, 1, 8);
  CHECK(simulate({a, b}, rates).seconds == doctest::Approx(2.5));
  rates.devices_of_node = 1;
  CHECK(simulate({a, b}, rates).seconds == doctest::Approx(11));
}

TEST_CASE(
    "timeline: operations of a communicator go one after the other on all streams, those of others beside "
    "them") {
  const auto program = [](int rank, std::uint64_t other) {
    Program p(rank);
    Transfer t;
    t.rank = rank;
    t.ranks = 2;
    t.kind = Transfer::Kind::reduce;
    t.bytes = 4;
    t.number = 1;
    p.exchange(1, {t});
    t.communicator = other;
    t.number = 2;
    p.exchange(2, {t});
    return p;
  };
  const Result same = simulate({program(0, 0), program(1, 0)}, plain()),
               two = simulate({program(0, 9), program(1, 9)}, plain());
  check_span(same.operations[0][0], 0, 4);
  check_span(same.operations[0][1], 4, 8);
  // They share the links.
  check_span(two.operations[0][0], 0, 8);
  check_span(two.operations[0][1], 0, 8);
}

TEST_CASE("timeline: transfers at the same time share the links of a device, one direction each") {
  // Rank 0 sends 4 to rank 1 and 2 to rank 2 in one call; rank 1 sends 3 to rank 2.
  Program zero(0), one(1), two(2);
  zero.exchange(1, {message(0, 0, 1, 4), message(0, 0, 2, 2)});
  one.exchange(1, {message(1, 0, 1, 4), message(1, 1, 2, 3)});
  two.exchange(1, {message(2, 0, 2, 2), message(2, 1, 2, 3)});
  const Result result = simulate({zero, one, two}, plain());
  // All go at half speed; (0, 2) is done at 4, (1, 2) has 1 left and (0, 1) has 2, both then alone on their links.
  CHECK(result.operations[0][0].end == doctest::Approx(6));
  CHECK(result.operations[1][0].end == doctest::Approx(6));
  CHECK(result.operations[2][0].end == doctest::Approx(5));
  // Directions do not disturb each other.
  Program left(0), right(1);
  left.exchange(1, {message(0, 0, 1, 4), message(0, 1, 0, 4)});
  right.exchange(1, {message(1, 0, 1, 4), message(1, 1, 0, 4)});
  CHECK(simulate({left, right}, plain()).seconds == doctest::Approx(4));
}

TEST_CASE("timeline: a collective beside a call of many messages gets half of the links") {
  const auto program = [](int rank) {
    Program p(rank);
    std::vector<Transfer> messages;
    for (int other = 0; other < 3; ++other) {
      if (other == rank) continue;
      messages.push_back(message(rank, rank, other, 4));
      messages.push_back(message(rank, other, rank, 4));
    }
    p.exchange(1, messages);
    Transfer sum = message(rank, 0, 0, 3);
    sum.communicator = 1;
    sum.kind = Transfer::Kind::reduce;
    p.exchange(2, {sum});
    return p;
  };
  const Result result = simulate({program(0), program(1), program(2)}, plain());
  check_span(result.operations[0][1], 0, 6);
  check_span(result.operations[0][0], 0, 11);
}

TEST_CASE("timeline: communication beside kernels costs nothing, behind them all that it takes") {
  const auto program = [](int rank, bool beside) {
    Program p(rank);
    for (int i = 1; i <= 3; ++i) {
      const std::uint64_t gradient = p.send(1, kernel(4));
      p.wait_in(2, gradient);
      const std::uint64_t sum = p.reduce(2, 2, static_cast<std::uint64_t>(i), 3);
      if (!beside) p.wait_in(1, sum);
    }
    return p;
  };
  const std::vector<Process> beside{program(0, true), program(1, true)},
      behind{program(0, false), program(1, false)};
  const Exposed hidden = exposed_communication(beside, plain()), all = exposed_communication(behind, plain());
  CHECK(hidden.seconds == doctest::Approx(15));
  CHECK(hidden.exposed == doctest::Approx(3));
  CHECK(hidden.least == doctest::Approx(3));
  CHECK(all.seconds == doctest::Approx(21));
  CHECK(all.exposed == doctest::Approx(9));
  CHECK(all.least == doctest::Approx(9));
}

TEST_CASE(
    "timeline: the least exposed communication does not know the order of transfers in a stream, but their "
    "links") {
  const auto program = [](int rank) {
    Program p(rank);
    const std::uint64_t early = p.send(1, kernel(1)), needed = p.send(1, kernel(1));
    p.wait_in(2, early);
    p.reduce(2, 2, 1, 20);  // no one waits for it before the end
    p.wait_in(2, needed);
    const std::uint64_t sum = p.reduce(2, 2, 2, 2);
    p.wait_in(1, sum);
    p.send(1, kernel(19));
    return p;
  };
  const Exposed exposed = exposed_communication({program(0), program(1)}, plain());
  CHECK(exposed.seconds == doctest::Approx(42));
  CHECK(exposed.exposed == doctest::Approx(42 - 21));
  // In another order: the small one between 2 and 4, the kernel until 23; the links have 22 seconds to do from 1 on.
  CHECK(exposed.least == doctest::Approx(23 - 21));
}

TEST_CASE("timeline: operations that wait for one another are refused") {
  Program program;
  program.send(1, kernel(1), {2});
  program.send(2, kernel(1), {1});
  CHECK_THROWS_WITH_AS(simulate({program}, plain()),
                       doctest::Contains("'operation 1' of process 0 never ends"), std::runtime_error);
}

TEST_CASE("timeline: a record is read as it was written, and a damaged one is refused") {
  Program program(3);
  program.send(7, kernel(1.25, 3));
  program.exchange(8, {message(3, 1, 2, 1e12)});
  program.host_waits({1, 2});
  std::ostringstream first;
  write_process(first, program);
  std::istringstream in(first.str());
  const Process read = read_process(in);
  std::ostringstream second;
  write_process(second, read);
  CHECK(first.str() == second.str());
  CHECK(read.rank == 3);
  CHECK(read.operations.at(1).transfers.at(0).bytes == 1e12);
  for (const std::string& text :
       {first.str().substr(0, first.str().size() / 2), std::string("something else")}) {
    std::istringstream damaged(text);
    CHECK_THROWS_AS(read_process(damaged), std::runtime_error);
  }
}

TEST_CASE("timeline: a trace has operations, waits, calls and the longest chain") {
  Rates rates = plain();
  rates.launch = 1;
  Program early(0), late(1);
  early.reduce(1, 2, 1, 5);
  late.send(1, kernel(7));
  late.reduce(1, 2, 1, 5);
  const std::vector<Process> processes{early, late};
  std::ostringstream out;
  write_trace(out, processes, simulate(processes, rates));
  const std::string text = out.str();
  for (const char* part : {R"("name":"critical path")", R"("name":"rank 1, device 0")",
                           R"("name":"waits for ranks: operation 1")",
                           R"("name":"operation 1","pid":2,"tid":1,"ts":1000000.000,"dur":7000000.000)",
                           R"("name":"launch")", R"("critical":true)"}) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
}

TEST_CASE("timeline: rates are read by name, and what is wrong is named with its line") {
  Rates rates;
  std::istringstream good(
      "# comment\n nvlink 5e9 # slower\n\nlaunch 0\nscale 2 3 kernel of all [step]\nscale 4 5 x\n");
  read_rates(good, rates);
  CHECK(rates.nvlink == 5e9);
  CHECK(rates.launch == 0);
  Operation o;
  o.name = "kernel of all";
  o.range = "step";
  CHECK(scale_of(o, rates).bytes == 2);
  CHECK(scale_of(o, rates).operations == 3);
  o.range = "x";
  CHECK(scale_of(o, rates).bytes == 4);
  const auto refused = [](const char* text, const char* why) {
    Rates r;
    std::istringstream lines(text);
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(read_rates(lines, r), doctest::Contains(why), std::runtime_error);
  };
  refused("dram 1\nvlink 5", "line 2: there is no rate 'vlink'; there are scale dram");
  refused("dram", "line 1: want a number");
  refused("dram -1", "line 1: want a number that is not negative");
  refused("dram 0", "'dram' must not be 0");
  refused("dram 1 2", "'2' behind the value of 'dram'");
  refused("scale 2 3", "want 'scale BYTES OPERATIONS TEXT'");
}
