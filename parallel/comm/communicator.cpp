#include "parallel/comm/communicator.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <numeric>
#include <utility>

#include "core/cuda/graph.h"
#include "core/profile.h"
#include "parallel/comm/collective.h"

namespace nemocube {
namespace {

void check_tensor(std::string_view operation, std::string_view role, const Tensor& t) {
  expect(t.defined() && !t.is_meta(), operation, ": ", role, " has no memory");
  expect(t.contiguous(), operation, ": ", role, " of shape ", t.shape(), " is not contiguous");
}

void check_pair(std::string_view operation, const Tensor& out, const Tensor& in) {
  check_tensor(operation, "out", out);
  check_tensor(operation, "in", in);
  expect(out.device() == in.device(), operation, ": out is on ", out.device(), ", in on ", in.device());
  expect(out.dtype() == in.dtype(), operation, ": out is ", out.dtype(), ", in is ", in.dtype());
}

void check_count(std::string_view operation, std::string_view role, const Tensor& t, std::int64_t want) {
  expect(t.numel() == want, operation, ": ", role, " has ", t.numel(), " elements, want ", want);
}

std::int64_t sum(std::span<const std::int64_t> counts) {
  return std::reduce(counts.begin(), counts.end(), std::int64_t{0});
}

void check_counts(std::string_view operation, std::span<const std::int64_t> counts, int size) {
  expect(std::ssize(counts) == size, operation, ": ", counts.size(), " counts for ", size, " ranks");
  expect(std::ranges::all_of(counts, [](std::int64_t n) { return n >= 0; }), operation,
         ": a count is negative");
}

// `part` is the whole memory of one tensor, `whole` that of the other; `offset` bytes is where the part may
// lie.
void check_apart(std::string_view operation, const Tensor& whole, const Tensor& part, std::int64_t offset) {
  if (whole.numel() == 0 || part.numel() == 0) return;
  const std::byte* w = static_cast<const std::byte*>(whole.address());
  const std::byte* p = static_cast<const std::byte*>(part.address());
  const std::less<const std::byte*> before;
  const bool apart = !before(w, p + part.bytes()) || !before(p, w + whole.bytes());
  expect(apart || (offset >= 0 && p == w + offset), operation, ": out and in overlap");
}

class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator(std::string name, int world_rank) : Communicator(std::move(name), 0, {world_rank}) {}
  std::unique_ptr<Communicator> of_same_ranks(std::string name) const override {
    return std::make_unique<SelfCommunicator>(std::move(name), members()[0]);
  }

 private:
  void run(Collective call) override {
    if (call.operation == Operation::reduce_scatter)
      copy_elements(call.out, call.in);
    else
      copy_own_messages(grouped_messages(call, 0), 0);
    count_as_queued(call.operation, {.calls = 1});
  }
  Work start(Collective call) override {
    run(std::move(call));
    return Work();
  }
};

}  // namespace

std::string_view name_of(Reduction reduction) {
  constexpr std::array<std::string_view, 3> names{"sum", "max", "min"};
  return names[static_cast<std::size_t>(reduction)];
}

std::string_view name_of(Operation operation) {
  constexpr std::array<std::string_view, operation_count> names{
      "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "exchange", "barrier"};
  return names[static_cast<std::size_t>(operation)];
}

Work& Work::operator=(Work&& other) noexcept {
  const Work old(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

Work::~Work() {
  if (!state_ || std::uncaught_exceptions() > 0) return;
  try {
    state_->wait();
  } catch (...) {
    state_ = nullptr;  // every later operation throws the same again
  }
}

void Work::wait() {
  static Zone zone("comm/blocked");
  const ZoneTimer timer(zone);
  if (const auto state = std::exchange(state_, nullptr)) state->wait();
}

Communicator::Communicator(std::string name, int rank, std::vector<int> members)
    : name_(std::move(name)), rank_(rank), members_(std::move(members)) {}

void CommTally::add(Operation operation, const CommStats& more) {
  const std::lock_guard lock(mutex_);
  CommStats& total = stats_[static_cast<std::size_t>(operation)];
  total.calls += more.calls;
  total.bytes_sent += more.bytes_sent;
  total.seconds += more.seconds;
  total.waiting_seconds += more.waiting_seconds;
}

CommStats CommTally::of(Operation operation) const {
  const std::lock_guard lock(mutex_);
  return stats_[static_cast<std::size_t>(operation)];
}

void Communicator::count_as_queued(Operation operation, const CommStats& call) {
  if (cuda::Capture* const capture = cuda::Capture::current())
    capture->at_launch([tally = tally_, operation, call] { tally->add(operation, call); });
  else
    tally_->add(operation, call);
}

Collective Communicator::next(Operation operation) {
  std::int64_t& called = operation == Operation::exchange ? exchanges_ : collectives_;
  Collective call;
  call.operation = operation;
  call.number = called++;
  // A captured call is made by each launch. Without one, ranks that got further in a capture than others
  // count on alike.
  if (cuda::Capture* const capture = cuda::Capture::current()) {
    capture->at_end([&called] { --called; });
    capture->at_launch([&called] { ++called; });
  }
  return call;
}

Collective Communicator::all_reduce_call(const Tensor& inout, Reduction reduction) {
  check_tensor("all_reduce", "inout", inout);
  Collective call = next(Operation::all_reduce);
  call.in = call.out = inout;
  call.dtype = inout.dtype();
  call.reduction = reduction;
  return call;
}

Collective Communicator::all_gather_call(const Tensor& out, const Tensor& in,
                                         std::vector<std::int64_t> counts) {
  check_pair("all_gather", out, in);
  check_counts("all_gather", counts, size());
  check_count("all_gather", "in", in, counts[static_cast<std::size_t>(rank_)]);
  check_count("all_gather", "out", out, sum(counts));
  const std::int64_t own = byte_offsets(counts, in.dtype())[static_cast<std::size_t>(rank_)];
  check_apart("all_gather", out, in, own);
  Collective call = next(Operation::all_gather);
  call.in = in;
  call.out = out;
  call.dtype = in.dtype();
  call.out_counts = std::move(counts);
  return call;
}

Collective Communicator::reduce_scatter_call(const Tensor& out, const Tensor& in,
                                             std::vector<std::int64_t> counts, Reduction reduction) {
  check_pair("reduce_scatter", out, in);
  check_counts("reduce_scatter", counts, size());
  check_count("reduce_scatter", "out", out, counts[static_cast<std::size_t>(rank_)]);
  check_count("reduce_scatter", "in", in, sum(counts));
  const std::int64_t own = byte_offsets(counts, in.dtype())[static_cast<std::size_t>(rank_)];
  check_apart("reduce_scatter", in, out, own);
  Collective call = next(Operation::reduce_scatter);
  call.in = in;
  call.out = out;
  call.dtype = in.dtype();
  call.reduction = reduction;
  call.in_counts = std::move(counts);
  return call;
}

Collective Communicator::broadcast_call(const Tensor& inout, int root) {
  check_tensor("broadcast", "inout", inout);
  expect(root >= 0 && root < size(), "broadcast: from rank ", root, " in a group of ", size());
  Collective call = next(Operation::broadcast);
  call.in = call.out = inout;
  call.dtype = inout.dtype();
  call.root = root;
  return call;
}

Collective Communicator::all_to_all_call(const Tensor& out, std::span<const std::int64_t> out_rows,
                                         const Tensor& in, std::span<const std::int64_t> in_rows) {
  check_pair("all_to_all", out, in);
  check_counts("all_to_all", out_rows, size());
  check_counts("all_to_all", in_rows, size());
  const auto row = [](const Tensor& t) {
    std::int64_t elements = 1;
    for (int d = 1; d < t.ndim(); ++d) elements *= t.dim(d);
    return elements;
  };
  expect(in.ndim() > 0 && out.ndim() > 0 && row(in) == row(out), "all_to_all: in has shape ", in.shape(),
         ", out ", out.shape(), "; want rows of the same size");
  Collective call = next(Operation::all_to_all);
  call.row = row(in);
  for (const std::int64_t rows : in_rows) call.in_counts.push_back(rows * call.row);
  for (const std::int64_t rows : out_rows) call.out_counts.push_back(rows * call.row);
  check_count("all_to_all", "in", in, sum(call.in_counts));
  check_count("all_to_all", "out", out, sum(call.out_counts));
  const auto r = static_cast<std::size_t>(rank_);
  expect(in_rows[r] == out_rows[r], "all_to_all: rank ", rank_, " keeps ", in_rows[r], " rows and takes ",
         out_rows[r]);
  check_apart("all_to_all", out, in, -1);
  call.in = in;
  call.out = out;
  call.dtype = in.dtype();
  return call;
}

Collective Communicator::exchange_call(std::vector<Send> sends, std::vector<Receive> receives) {
  std::vector<std::pair<DType, std::int64_t>> kept, taken;  // elements of the messages to this rank itself
  for (const Send& send : sends) {
    check_tensor("exchange", "a tensor to send", send.tensor);
    expect(send.to >= 0 && send.to < size(), "exchange: to rank ", send.to, " in a group of ", size());
    if (send.to == rank_) kept.emplace_back(send.tensor.dtype(), send.tensor.numel());
  }
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const Receive& receive = receives[i];
    check_tensor("exchange", "a tensor to receive", receive.tensor);
    expect(receive.from >= 0 && receive.from < size(), "exchange: from rank ", receive.from,
           " in a group of ", size());
    if (receive.from == rank_) taken.emplace_back(receive.tensor.dtype(), receive.tensor.numel());
    for (const Send& send : sends) check_apart("exchange", send.tensor, receive.tensor, -1);
    for (std::size_t k = 0; k < i; ++k) check_apart("exchange", receives[k].tensor, receive.tensor, -1);
  }
  expect(kept == taken, "exchange: rank ", rank_,
         " sends itself other elements than it receives from itself");
  Collective call = next(Operation::exchange);
  call.sends = std::move(sends);
  call.receives = std::move(receives);
  return call;
}

namespace {
std::vector<std::int64_t> equal_counts(const Tensor& part, int size) {
  return std::vector(static_cast<std::size_t>(size), part.defined() ? part.numel() : 0);
}
std::vector<std::int64_t> to_vector(std::span<const std::int64_t> counts) {
  return {counts.begin(), counts.end()};
}
}  // namespace

void Communicator::all_reduce(const Tensor& inout, Reduction reduction) {
  run(all_reduce_call(inout, reduction));
}
Work Communicator::start_all_reduce(const Tensor& inout, Reduction reduction) {
  return start(all_reduce_call(inout, reduction));
}
void Communicator::all_gather(const Tensor& out, const Tensor& in) {
  run(all_gather_call(out, in, equal_counts(in, size())));
}
Work Communicator::start_all_gather(const Tensor& out, const Tensor& in) {
  return start(all_gather_call(out, in, equal_counts(in, size())));
}
void Communicator::all_gather_v(const Tensor& out, const Tensor& in, std::span<const std::int64_t> counts) {
  run(all_gather_call(out, in, to_vector(counts)));
}
Work Communicator::start_all_gather_v(const Tensor& out, const Tensor& in,
                                      std::span<const std::int64_t> counts) {
  return start(all_gather_call(out, in, to_vector(counts)));
}
void Communicator::reduce_scatter(const Tensor& out, const Tensor& in, Reduction reduction) {
  run(reduce_scatter_call(out, in, equal_counts(out, size()), reduction));
}
Work Communicator::start_reduce_scatter(const Tensor& out, const Tensor& in, Reduction reduction) {
  return start(reduce_scatter_call(out, in, equal_counts(out, size()), reduction));
}
void Communicator::reduce_scatter_v(const Tensor& out, const Tensor& in, std::span<const std::int64_t> counts,
                                    Reduction reduction) {
  run(reduce_scatter_call(out, in, to_vector(counts), reduction));
}
Work Communicator::start_reduce_scatter_v(const Tensor& out, const Tensor& in,
                                          std::span<const std::int64_t> counts, Reduction reduction) {
  return start(reduce_scatter_call(out, in, to_vector(counts), reduction));
}
void Communicator::broadcast(const Tensor& inout, int root) { run(broadcast_call(inout, root)); }
void Communicator::all_to_all_v(const Tensor& out, std::span<const std::int64_t> out_rows, const Tensor& in,
                                std::span<const std::int64_t> in_rows) {
  run(all_to_all_call(out, out_rows, in, in_rows));
}
Work Communicator::start_all_to_all_v(const Tensor& out, std::span<const std::int64_t> out_rows,
                                      const Tensor& in, std::span<const std::int64_t> in_rows) {
  return start(all_to_all_call(out, out_rows, in, in_rows));
}
void Communicator::exchange(std::vector<Send> sends, std::vector<Receive> receives) {
  run(exchange_call(std::move(sends), std::move(receives)));
}
Work Communicator::start_exchange(std::vector<Send> sends, std::vector<Receive> receives) {
  return start(exchange_call(std::move(sends), std::move(receives)));
}
void Communicator::host_barrier() { run(next(Operation::barrier)); }

std::unique_ptr<Communicator> self_communicator(std::string name, int world_rank) {
  return std::make_unique<SelfCommunicator>(std::move(name), world_rank);
}

}  // namespace nemocube
