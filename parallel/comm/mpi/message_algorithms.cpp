#include "parallel/comm/mpi/message_algorithms.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <iomanip>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "core/range.h"
#include "core/rng.h"
#include "parallel/comm/reduce_in_order.h"

namespace nemocube {

void require_going_on(const CommEngine& engine) { require(!engine.ending, "another failure ends the job"); }

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr std::uint32_t check_fingerprint = 1;  // of the messages with which ranks compare their calls

// Ranks often share cores, and a message in shared memory moves only while both ends poll.
void rest(Clock::duration idle, CallsFrom from) {
  using namespace std::chrono_literals;
  if (from == CallsFrom::background_thread) return std::this_thread::sleep_for(idle < 1ms ? 50us : 1ms);
  if (idle < 20us) return;
  if (idle < 1ms)
    ::sched_yield();
  else
    std::this_thread::sleep_for(50us);
}

/// One collective on this rank, while it runs.
class Execution {
 public:
  explicit Execution(const MessageCall& c)
      : communicator_(c.communicator),
        group_(c.group),
        engine_(c.engine),
        call_(c.call),
        from_(c.from),
        own_storage_bytes_(c.storage_bytes),
        rank_(communicator_.rank()),
        size_(communicator_.size()),
        fingerprint_(fingerprint(call_) ^ static_cast<std::uint32_t>(hash_name(communicator_.name()))),
        last_message_(Clock::now()) {}

  void check_with_others();
  void run();
  const CommStats& stats() const { return stats_; }

 private:
  class Phase;
  void all_reduce();
  void reduce_parts(const std::vector<std::int64_t>& offsets, std::byte* out, bool gather);
  void send_and_receive();
  void broadcast();
  void barrier();

  std::byte* in() const { return call_.in.host_bytes(); }
  std::byte* out() const { return call_.out.host_bytes(); }
  /// The other ranks, the next one first.
  int peer(int i) const { return (rank_ + i) % size_; }
  void wait(Messages& messages, double timeout_seconds);
  template <class Fn>
  auto in_our_words(Fn&& fn) const -> decltype(fn());  // a failure of the transport names this call
  int world_rank(int rank) const { return communicator_.members()[static_cast<std::size_t>(rank)]; }
  [[noreturn]] void fail_waiting(const Messages& messages, double seconds) const;

  /// Others exchange messages meanwhile.
  void rest_without_transport(Clock::duration idle) const {
    if (from_ == CallsFrom::background_thread) return rest(idle, from_);
    engine_.transport_mutex.unlock();
    rest(idle, from_);
    engine_.transport_mutex.lock();
    require_going_on(engine_);  // first: the communicator may be gone
  }
  /// For one call of the transport, where the operation does not hold the transport throughout.
  std::unique_lock<std::timed_mutex> transport() const {
    if (from_ == CallsFrom::main_thread) return {engine_.transport_mutex, std::defer_lock};
    return std::unique_lock(engine_.transport_mutex);
  }
  std::int64_t storage_bytes() const { return engine_.storage_bytes + own_storage_bytes_; }
  /// What waits may last longer now.
  double storage_seconds() const {
    return static_cast<double>(storage_bytes()) / slow_storage_bytes_per_second;
  }

  const Communicator& communicator_;
  const MessageGroup& group_;
  CommEngine& engine_;
  const Collective& call_;
  const CallsFrom from_;
  const std::int64_t own_storage_bytes_;
  const int rank_, size_;
  const std::uint32_t fingerprint_;
  Clock::time_point last_message_;
  CommStats stats_{.calls = 1};
};

/// Messages that are waited for together. The tag of a message says to which call it belongs and how long the
/// whole transfer is, so ranks whose calls or sizes differ find out with the first message.
class Execution::Phase {
 public:
  explicit Phase(Execution& execution) : Phase(execution, execution.fingerprint_) {}
  Phase(Execution& execution, std::uint32_t fingerprint)
      : execution_(execution), messages_(execution.group_.messages()), fingerprint_(fingerprint) {}
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;
  ~Phase() {
    const auto lock = execution_.transport();
    messages_ = nullptr;
  }

  void send(const std::byte* data, std::int64_t bytes, int to) {
    in_pieces(bytes, [&](std::int64_t offset, std::int64_t n) {
      const auto lock = execution_.transport();
      messages_->send(data + offset, n, to, tag(bytes));
    });
    execution_.stats_.bytes_sent += bytes;
  }
  void receive(std::byte* data, std::int64_t bytes, int from) {
    in_pieces(bytes, [&](std::int64_t offset, std::int64_t n) {
      const auto lock = execution_.transport();
      execution_.in_our_words([&] { messages_->receive(data + offset, n, from, tag(bytes)); });
    });
  }
  void signal(int peer) {
    const auto lock = execution_.transport();
    messages_->send(nullptr, 0, peer, tag(0));
    execution_.in_our_words([&] { messages_->receive(nullptr, 0, peer, tag(0)); });
  }
  void wait(double patience = 1) {
    execution_.wait(*messages_, patience * execution_.engine_.options.timeout_seconds);
  }

 private:
  int tag(std::int64_t bytes) const {
    const std::uint64_t mixed = (fingerprint_ + static_cast<std::uint64_t>(bytes)) * 0x9e3779b97f4a7c15u;
    return static_cast<int>((mixed >> 32) & largest_tag);
  }
  template <class Fn>
  void in_pieces(std::int64_t bytes, Fn&& fn) {
    const std::int64_t most = execution_.engine_.options.message_bytes;
    for (std::int64_t offset = 0; offset < bytes; offset += most) fn(offset, std::min(most, bytes - offset));
  }

  Execution& execution_;
  std::unique_ptr<Messages> messages_;
  std::uint32_t fingerprint_;
};

void Execution::wait(Messages& messages, double timeout_seconds) {
  auto open = std::ranges::count(messages.all(), false, &Messages::Message::done);
  Clock::time_point before = Clock::now();
  while (open > 0) {
    const int done = in_our_words([&] {
      const auto lock = transport();
      return messages.poll();
    });
    const Clock::time_point now = Clock::now();
    open -= done;
    if (done > 0) last_message_ = now;
    if (done == 0) {
      stats_.waiting_seconds += Seconds(now - before).count();
      require_going_on(engine_);
      const double waited = Seconds(now - last_message_).count();
      if (waited > timeout_seconds + storage_seconds()) fail_waiting(messages, waited);
      rest_without_transport(now - last_message_);
    }
    before = now;
  }
}

template <class Fn>
auto Execution::in_our_words(Fn&& fn) const -> decltype(fn()) {
  try {
    return fn();
  } catch (const WrongMessage& w) {
    const int peer = world_rank(w.peer);
    fail("rank ", world_rank(rank_), " wants ", w.wanted, " bytes of rank ", peer, " in ", describe(call_),
         " of group ", communicator_.name(), ", and rank ", peer, " sends ", w.sent,
         w.sent == w.wanted ? " of another call" : "");
  } catch (const Error& e) {
    fail(describe(call_), " of group ", communicator_.name(), ": ", e.what());
  }
}

void Execution::fail_waiting(const Messages& messages, double seconds) const {
  std::vector<int> missing;
  for (const bool incoming : {true, false}) {
    if (!missing.empty()) break;  // whoever sends nothing has not come; else whoever takes nothing
    for (const auto& m : messages.all())
      if (!m.done && m.incoming == incoming) missing.push_back(world_rank(m.peer));
  }
  std::ranges::sort(missing);
  missing.erase(std::ranges::unique(missing).begin(), missing.end());
  constexpr std::size_t most = 8;
  std::ostringstream who;
  who << (missing.size() == 1 ? "rank " : "ranks ");
  for (std::size_t i = 0; i < std::min(most, missing.size()); ++i) who << (i == 0 ? "" : ", ") << missing[i];
  if (missing.size() > most) who << " and " << missing.size() - most << " more";
  who << (missing.size() == 1 ? " has" : " have") << " not come";
  const auto text = [](double number) {
    std::ostringstream out;
    out << std::fixed << std::setprecision(1) << number;
    return out.str();
  };
  const double extra = storage_seconds();
  fail("rank ", world_rank(rank_), " waited ", text(seconds), " s in ", describe(call_), " of group ",
       communicator_.name(), "; ", who.str(),
       extra > 0
           ? cat(" (while files are written or read, the limit is ", text(engine_.options.timeout_seconds),
                 " s and ", text(extra), " s for ", text(static_cast<double>(storage_bytes()) / 1e6),
                 " MB at ", text(slow_storage_bytes_per_second / 1e6), " MB/s)")
           : "");
}

void Execution::run() {
  switch (call_.operation) {
    case Operation::all_reduce:
      return all_reduce();
    case Operation::all_gather:
    case Operation::all_to_all:
    case Operation::exchange:
      return send_and_receive();
    case Operation::reduce_scatter:
      return reduce_parts(byte_offsets(call_.in_counts, call_.dtype), out(), false);
    case Operation::broadcast:
      return broadcast();
    case Operation::barrier:
      return barrier();
  }
}

void Execution::all_reduce() {
  const std::int64_t bytes = call_.out.bytes();
  if (bytes > latency_bound_bytes) {
    const auto offsets = byte_offsets(even_sizes(call_.out.numel(), size_), call_.dtype);
    return reduce_parts(offsets, out() + offsets[static_cast<std::size_t>(rank_)], true);
  }
  const Tensor staging = Tensor::empty({size_, bytes}, DType::u8, Device::cpu);  // MPI messages
  std::vector<const void*> sources(static_cast<std::size_t>(size_), out());
  Phase phase(*this);
  for (int i = 1; i < size_; ++i) {
    const int p = peer(i);
    auto* part = reinterpret_cast<std::byte*>(staging.row<std::uint8_t>(p));
    sources[static_cast<std::size_t>(p)] = part;
    phase.send(out(), bytes, p);
    phase.receive(part, bytes, p);
  }
  phase.wait();
  reduce_in_order(sources, out(), call_.out.numel(), call_.dtype, call_.reduction);
}

// Part p of the input, bytes offsets[p] to offsets[p + 1], goes to rank p. Each rank adds its part chunk by
// chunk in `out`, while the next chunk is on its way; with `gather` the sums replace the input on all ranks.
void Execution::reduce_parts(const std::vector<std::int64_t>& offsets, std::byte* result, bool gather) {
  const std::int64_t width = size_of(call_.dtype);
  const CommOptions& o = engine_.options;
  const std::int64_t chunk =
      std::max<std::int64_t>(1, std::min(o.chunk_bytes, o.staging_bytes / (2 * size_)) / width) * width;
  struct Range {
    std::int64_t begin, bytes;
  };
  const auto range = [&](int rank, std::int64_t c) -> Range {
    const auto p = static_cast<std::size_t>(rank);
    const std::int64_t begin = std::min(offsets[p] + c * chunk, offsets[p + 1]);
    return {begin, std::min(chunk, offsets[p + 1] - begin)};
  };
  std::int64_t longest = 0;
  for (int p = 0; p < size_; ++p)
    longest =
        std::max(longest, offsets[static_cast<std::size_t>(p) + 1] - offsets[static_cast<std::size_t>(p)]);
  const std::int64_t chunks = (longest + chunk - 1) / chunk;
  const Tensor staging =
      Tensor::empty({2 * size_, range(rank_, 0).bytes}, DType::u8, Device::cpu);  // MPI messages
  const auto contribution = [&](int rank, std::int64_t c) {
    return reinterpret_cast<std::byte*>(staging.row<std::uint8_t>(c % 2 * size_ + rank));
  };

  std::array<std::optional<Phase>, 2> contributions, sums;
  const auto begin_chunk = [&](std::int64_t c) {
    Phase& phase = contributions[static_cast<std::size_t>(c % 2)].emplace(*this);
    for (int i = 1; i < size_; ++i) {
      const int p = peer(i);
      phase.receive(contribution(p, c), range(rank_, c).bytes, p);
      phase.send(in() + range(p, c).begin, range(p, c).bytes, p);
    }
  };
  if (chunks > 0) begin_chunk(0);
  for (std::int64_t c = 0; c < chunks; ++c) {
    const auto slot = static_cast<std::size_t>(c % 2);
    if (c + 1 < chunks) begin_chunk(c + 1);
    contributions[slot]->wait();
    const Range own = range(rank_, c);
    std::byte* sum = result + (own.begin - offsets[static_cast<std::size_t>(rank_)]);
    std::vector<const void*> sources;
    for (int p = 0; p < size_; ++p) sources.push_back(p == rank_ ? in() + own.begin : contribution(p, c));
    reduce_in_order(sources, sum, own.bytes / width, call_.dtype, call_.reduction);
    if (!gather) continue;
    if (sums[slot]) sums[slot]->wait();
    Phase& phase = sums[slot].emplace(*this);
    for (int i = 1; i < size_; ++i) {
      const int p = peer(i);
      phase.receive(in() + range(p, c).begin, range(p, c).bytes, p);
      phase.send(sum, own.bytes, p);
    }
  }
  for (auto& phase : sums)
    if (phase) phase->wait();
}

void Execution::send_and_receive() {
  const GroupedMessages messages = grouped_messages(call_, rank_);
  copy_own_messages(messages, rank_);
  Phase phase(*this);
  for (const Receive& r : messages.receives)
    if (r.from != rank_) phase.receive(r.tensor.host_bytes(), r.tensor.bytes(), r.from);
  for (const Send& s : messages.sends)
    if (s.to != rank_) phase.send(s.tensor.host_bytes(), s.tensor.bytes(), s.to);
  phase.wait();
}

void Execution::broadcast() {
  const std::int64_t bytes = call_.out.bytes();
  const int root = call_.root;
  // Phase 0 brings each rank its part from the root. In phase 1 its part goes from there to the others.
  std::vector<std::int64_t> offsets;
  if (bytes > latency_bound_bytes) {
    offsets = byte_offsets(even_sizes(bytes, size_), DType::u8);
  } else {  // one part, the root's
    offsets.assign(static_cast<std::size_t>(size_) + 1, 0);
    std::fill(offsets.begin() + root + 1, offsets.end(), bytes);
  }
  const auto begin = [&](int p) { return out() + offsets[static_cast<std::size_t>(p)]; };
  const auto length = [&](int p) {
    return offsets[static_cast<std::size_t>(p) + 1] - offsets[static_cast<std::size_t>(p)];
  };
  Phase deal(*this), pass_on(*this);
  if (rank_ != root) {
    deal.receive(begin(rank_), length(rank_), root);
    deal.wait();
  }
  for (int i = 1; i < size_; ++i) {
    const int p = peer(i);
    if (rank_ == root) deal.send(begin(p), length(p), p);
    if (rank_ != root) pass_on.receive(begin(p), length(p), p);
    if (p != root) pass_on.send(begin(rank_), length(rank_), p);
  }
  if (rank_ == root) deal.wait();
  pass_on.wait();
}

void Execution::barrier() {
  Phase phase(*this);
  for (int i = 1; i < size_; ++i) phase.signal(peer(i));
  phase.wait();
}

// Every rank sends a text of its call to rank 0, which answers with the first rank whose text differs from
// its own, and that text.
void Execution::check_with_others() {
  struct Text {
    std::array<char, 248> text{};
    std::int32_t rank = -1;  // of the group, in an answer: the first rank that differs
  };
  const auto text_of = [](const std::string& words) {
    Text t;
    std::ranges::copy(std::string_view(words).substr(0, t.text.size() - 1), t.text.begin());
    return t;
  };
  const auto bytes = [](Text& t) { return reinterpret_cast<std::byte*>(&t); };
  const std::int64_t sent = stats_.bytes_sent;  // the check's own bytes do not count
  std::vector<Text> texts(static_cast<std::size_t>(size_), text_of(describe(call_)));
  const auto everyone = [&](auto&& message) {
    Phase phase(*this, check_fingerprint);
    for (int p = 1; p < size_; ++p) message(phase, p);
    phase.wait();
  };
  // Rank 0 knows who has not come, so it is the first to lose patience.
  const auto with_root = [&](auto&& message) {
    Phase phase(*this, check_fingerprint);
    message(phase);
    phase.wait(2);
  };
  std::array<Text, 2> answer;  // of the first rank that differs, of rank 0
  if (rank_ == 0) {
    everyone([&](Phase& phase, int p) {
      phase.receive(bytes(texts[static_cast<std::size_t>(p)]), sizeof(Text), p);
    });
    for (int p = size_ - 1; p > 0; --p) {
      Text& text = texts[static_cast<std::size_t>(p)];
      if (text.text == texts[0].text) continue;
      answer = {text, texts[0]};
      answer[0].rank = p;
    }
    everyone([&](Phase& phase, int p) { phase.send(bytes(answer[0]), sizeof answer, p); });
  } else {
    with_root([&](Phase& phase) { phase.send(bytes(texts[0]), sizeof(Text), 0); });
    with_root([&](Phase& phase) { phase.receive(bytes(answer[0]), sizeof answer, 0); });
  }
  stats_.bytes_sent = sent;
  if (answer[0].rank < 0) return;
  fail("calls of group ", communicator_.name(), " differ: rank ", world_rank(answer[0].rank), " calls ",
       answer[0].text.data(), ", rank ", world_rank(0), " calls ", answer[1].text.data());
}

}  // namespace

CommStats run_by_messages(const MessageCall& call) {
  Execution execution(call);
  if (call.engine.options.check_collectives && call.call.operation != Operation::exchange)
    execution.check_with_others();
  execution.run();
  return execution.stats();
}

void compare_calls(const MessageCall& call) { Execution(call).check_with_others(); }

}  // namespace nemocube
