#include "train/bench/bench_comm.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/quote.h"
#include "parallel/comm/process_groups.h"
#include "train/bench/timing.h"

namespace nemocube {
namespace {

/// Input element i of a rank of the group. Sums of up to 64 ranks are exact in bf16.
std::int64_t input(std::int64_t rank, std::int64_t i) { return (i + 3 * rank) % 5; }

void put(const Tensor& t, std::int64_t i, std::int64_t value) {
  visit_float("bench comm", t.dtype(),
              [&]<class T>(TypeTag<T>) { t.data<T>()[i] = T(static_cast<float>(value)); });
}

template <class Fn>
std::int64_t wrong_elements(const Tensor& t, Fn&& want) {
  return visit_float("bench comm", t.dtype(), [&]<class T>(TypeTag<T>) {
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < t.numel(); ++i)
      wrong += static_cast<double>(t.data<T>()[i]) != static_cast<double>(want(i));
    return wrong;
  });
}

/// One operation on buffers of its own.
class Subject {
 public:
  Subject(Communicator& group, Operation operation, std::int64_t elements, DType dtype, Device device)
      : group_(group),
        operation_(operation),
        n_(group.size()),
        part_(elements / n_),
        counts_(group.members().size(), part_) {
    buffer_ = Tensor::zeros({elements}, dtype, device);
    if (operation == Operation::all_to_all || operation == Operation::exchange)
      other_ = Tensor::zeros({elements}, dtype, device);
  }

  void run() {
    const Tensor own = buffer_.narrow(0, part_ * group_.rank(), part_);
    const int next = (group_.rank() + 1) % n_, previous = (group_.rank() + n_ - 1) % n_;
    switch (operation_) {
      case Operation::all_reduce:
        return group_.all_reduce(buffer_);
      case Operation::all_gather:
        return group_.all_gather(buffer_, own);
      case Operation::reduce_scatter:
        return group_.reduce_scatter(own, buffer_);
      case Operation::broadcast:
        return group_.broadcast(buffer_, 0);
      case Operation::all_to_all:
        return group_.all_to_all_v(other_, counts_, buffer_, counts_);
      case Operation::exchange:
        return group_.exchange({{buffer_, next}}, {{other_, previous}});
      case Operation::barrier:
        return group_.host_barrier();
    }
  }

  /// Runs on small integers; returns how many elements are wrong on this rank. Leaves zeros behind.
  std::int64_t verify() {
    const std::int64_t rank = group_.rank(), elements = buffer_.numel();
    const Tensor inputs = Tensor::empty({elements}, buffer_.dtype(), Device::cpu);  // made by the host
    for (std::int64_t i = 0; i < elements; ++i) put(inputs, i, input(rank, i));
    buffer_.copy_from(inputs);
    run();
    const Tensor result = (other_.defined() ? other_ : buffer_).to(Device::cpu);  // compared by the host
    const std::int64_t wrong = wrong_elements(result, [&](std::int64_t i) { return expected(i); });
    buffer_.zero();
    return wrong;
  }

  /// Of the bytes, what each rank must send at least.
  double bus_factor() const {
    const double others = static_cast<double>(n_ - 1) / n_;
    switch (operation_) {
      case Operation::all_reduce:
        return 2 * others;
      case Operation::broadcast:
      case Operation::exchange:
        return n_ > 1 ? 1 : 0;
      case Operation::barrier:
        return 0;
      default:
        return others;
    }
  }

 private:
  std::int64_t expected(std::int64_t i) const {
    const std::int64_t rank = group_.rank(), part = i / part_;
    const auto sum = [&] {
      std::int64_t total = 0;
      for (int r = 0; r < n_; ++r) total += input(r, i);
      return total;
    };
    switch (operation_) {
      case Operation::all_reduce:
        return sum();
      case Operation::reduce_scatter:
        return part == rank ? sum() : input(rank, i);
      case Operation::all_gather:
        return input(part, i);
      case Operation::broadcast:
        return input(0, i);
      case Operation::all_to_all:
        return input(part, rank * part_ + i % part_);
      case Operation::exchange:
        return input((rank + n_ - 1) % n_, i);
      case Operation::barrier:
        break;
    }
    return input(rank, i);
  }

  Communicator& group_;
  Operation operation_;
  int n_;
  std::int64_t part_;
  std::vector<std::int64_t> counts_;
  Tensor buffer_, other_;
};

double greatest(World& world, double value) {
  return world.communicator().host_all_reduce(value, Reduction::max);
}

std::int64_t added_up(World& world, std::int64_t value) {
  return world.communicator().host_all_reduce(value);
}

struct Timing {
  double seconds = 0;  // of one call, on the slowest rank
  std::int64_t calls = 0;
};

template <class Fn>
Timing time_calls(World& world, double seconds, Device device, Fn&& fn) {
  const auto calls_of = [&](std::int64_t calls) {
    world.communicator().host_barrier();
    const double all = seconds_of([&] {
      for (std::int64_t i = 0; i < calls; ++i) fn();
      if (device.is_cuda()) cuda::synchronize();
    });
    return greatest(world, all / static_cast<double>(calls));
  };
  const double first = std::max(calls_of(2), 1e-7);
  const std::int64_t calls = std::clamp<std::int64_t>(static_cast<std::int64_t>(seconds / first), 3, 20000);
  return {calls_of(calls), calls};
}

std::vector<Operation> operations(const std::vector<std::string>& names) {
  std::vector<Operation> chosen;
  std::string known;
  for (std::size_t i = 0; i < operation_count; ++i) {
    const auto operation = static_cast<Operation>(i);
    known += cat(i == 0 ? "" : ", ", name_of(operation));
    if (names.empty() || std::ranges::find(names, name_of(operation)) != names.end())
      chosen.push_back(operation);
  }
  require(names.empty() || chosen.size() == names.size(), "bench comm: want operations among ", known);
  return chosen;
}

/// Each set of ranks under its first name. A set may have one rank here and several elsewhere in the grid,
/// but groups of one name have one size, so all ranks choose the same names.
std::vector<Group> distinct(const ProcessGroups& groups) {
  std::vector<Group> found;
  std::set<std::vector<int>> seen;
  for (const Group group : groups.present()) {
    const auto members = groups[group].members();
    if (members.size() > 1 && group != Group::embd && seen.insert({members.begin(), members.end()}).second)
      found.push_back(group);
  }
  return found.empty() ? std::vector{Group::dp} : found;
}

std::vector<Group> groups_named(const std::vector<std::string>& names, const ProcessGroups& groups) {
  std::vector<Group> found;
  for (const std::string& name : names) {
    const auto group = find_group(name);
    std::string known;
    for (const Group g : groups.present()) known += cat(known.empty() ? "" : ", ", name_of(g));
    require(group.has_value(), "bench comm: no process group ", quote(name), "; want one of ", known);
    found.push_back(*group);
  }
  return found;
}

}  // namespace

void bench_comm(World& world, const BenchCommOptions& o,
                const std::function<void(const BenchCommCase&)>& report) {
  const HypercubeGrid grid(o.grid.empty() ? std::vector<GridDimension>{{"dp", world.size()}} : o.grid, 0,
                           world.size());
  require(grid.size() == world.size(), "bench comm: the grid ", to_string(grid.dimensions()), " has ",
          grid.size(), " ranks, the job ", world.size());
  require(o.least_bytes > 0 && o.most_bytes >= o.least_bytes && o.factor > 1,
          "bench comm: want sizes from 1 byte, the first not above the last, and a factor above 1");
  const auto kinds = operations(o.kinds);
  const ProcessGroups groups(world, grid);
  for (const Group name : o.groups.empty() ? distinct(groups) : groups_named(o.groups, groups)) {
    Communicator& group = groups[name];
    for (const Operation operation : kinds) {
      for (std::int64_t bytes = o.least_bytes; bytes <= o.most_bytes; bytes *= o.factor) {
        const bool barrier = operation == Operation::barrier;
        const std::int64_t width = size_of(o.dtype), n = group.size();
        const std::int64_t elements = barrier ? n : std::max<std::int64_t>(1, bytes / width / n) * n;
        Subject subject(group, operation, elements, o.dtype, o.device);
        BenchCommCase c{.group = group.name(), .ranks = group.size(), .operation = operation};
        c.bytes = barrier ? 0 : elements * width;
        c.wrong = added_up(world, barrier ? 0 : subject.verify());
        const Timing timing = time_calls(world, o.seconds, o.device, [&] { subject.run(); });
        c.calls = timing.calls;
        c.seconds = timing.seconds;
        c.algorithm_bandwidth = static_cast<double>(c.bytes) / c.seconds;
        c.bus_bandwidth = c.algorithm_bandwidth * subject.bus_factor();
        if (c.bytes > 0) {
          const Tensor from = Tensor::zeros({c.bytes}, DType::u8, o.device),
                       to = Tensor::zeros({c.bytes}, DType::u8, o.device);
          const Timing copy = time_calls(world, o.seconds / 4, o.device, [&] {
            if (o.device.is_cuda()) return to.copy_from(from);
            std::memcpy(to.host_bytes(), from.host_bytes(), static_cast<std::size_t>(c.bytes));
            asm volatile("" ::: "memory");
          });
          c.copy_fraction = c.bus_bandwidth * copy.seconds / static_cast<double>(c.bytes);
        }
        report(c);
        if (barrier) break;
      }
    }
  }
}

std::string_view bench_comm_legend() {
  return R"(  group, n    process group (docs/parallel.md) and its ranks; all groups of one name work at the same time
  bytes       of the larger of input and output on one rank; exchange: to the next rank of a ring
  us          microseconds of one call on the slowest rank
  algbw       GB/s: bytes / time
  busbw       GB/s: algbw times the part of the bytes that a rank must send, as in nccl-tests
  of copy     busbw / bandwidth of copies of as many bytes on all ranks at once
  wrong       elements that differ from the exact result on small integers, on all ranks
)";
}

}  // namespace nemocube
