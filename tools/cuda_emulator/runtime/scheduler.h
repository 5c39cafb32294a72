#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checks/order.h"
#include "timeline/schedule.h"

/// Streams as queues of operations that run as late and in as mixed an order as the program's events and synchronisation allow.
namespace emulator {

/// Something that a stream or a node of a graph does: a kernel, a copy, a host function. One object may run many times (graphs).
class Work {
 public:
  virtual ~Work() = default;
  /// Does the work and returns 0, `work_again`, or the cudaError that the device keeps for good.
  virtual int run(OperationId operation) = 0;
  /// For messages: "kernel saxpy(int, float*)".
  virtual std::string name() const = 0;
  /// Work that touches no memory has no place in the order of operations.
  virtual bool ordered() const { return true; }
  /// Host functions run on a thread of their own, so that they may wait for what the program's threads do.
  virtual bool on_host() const { return false; }
  /// Whether work behind it in the stream may begin before it has ended: a kernel with griddepcontrol.launch_dependents. Without that
  /// instruction dependents begin when all blocks have ended.
  virtual bool launches_dependents() const { return false; }
  /// May begin before the kernel that comes before it in the stream has ended (programmatic stream serialization).
  virtual bool begins_early() const { return false; }
  /// Does what such work does before it waits for that kernel; run() follows, as the operation `later`.
  virtual void run_early(OperationId /*early*/, OperationId /*later*/) {}
  /// The next run() calls this once, at some moment before it ends.
  virtual void overlap(std::function<void()> /*other*/) {}
  /// Called instead of run() when the device has failed before.
  virtual void skip(int /*error*/) {}
  /// For the timeline: by which kind of call the work is sent, and what it is before run() has said more.
  virtual timeline::HostStep::Kind call() const { return timeline::HostStep::Kind::launch; }
  virtual timeline::Load::Kind load() const { return timeline::Load::Kind::local; }
};
/// Result of Work::run: a peer is not there yet; other work goes on and this work is tried again later.
constexpr int work_again = -1;

struct Operation;
using OperationPtr = std::shared_ptr<Operation>;

/// One run of a piece of work, with what must be complete before it.
struct Operation {
  enum class State : std::uint8_t { waiting, ready, running, done };
  std::shared_ptr<Work>
      work;  ///< nullptr: only a point in a stream (event record, wait, begin and end of a graph)
  int device = 0;
  OperationId id = 0;
  Clock clock;            ///< what is known to be complete once this operation is
  OperationId early = 0;  ///< of work that begins early: its part that does; 0: there is none, or it is done
  std::weak_ptr<Operation> primary;  ///< the kernel with which that part may overlap
  bool launches_dependents = false;
  State state = State::waiting;
  std::uint32_t missing = 0;               ///< predecessors that are not done
  std::vector<OperationPtr> predecessors;  ///< emptied when the operation is done
  std::vector<OperationPtr> successors;
  bool wanted = false;         ///< a thread waits for this operation or for one behind it
  std::uint64_t recorded = 0;  ///< its id in the timeline; 0: it is not recorded
  std::uint64_t round = 0;     ///< of the last try that ended with work_again
  std::chrono::steady_clock::time_point finished;
  bool done() const { return state == State::done; }
};

struct StreamCapture;

struct Stream {
  StreamKey key = 0;
  StreamKey early_key =
      0;  ///< of the parts of its kernels that begin early, in the order of operations; 0: none did yet
  int device = 0;
  bool blocking = true;  ///< has edges to and from the legacy default stream
  bool legacy = false;
  bool destroyed = false;  ///< lives on until its work is done
  int priority = 0;
  unsigned flags = 0;
  OperationPtr last;
  Clock clock;
  std::shared_ptr<StreamCapture> capture;  ///< graph.h; guarded by the capture's mutex
};

/// What an event holds after its last record.
struct Mark {
  OperationPtr operation;  ///< nullptr: never recorded
  Clock clock;
};

/// One for the process. Every function locks; all are safe to call from any thread but from inside Work::run.
class Scheduler {
 public:
  static Scheduler& instance();

  Stream& create_stream(int device, bool blocking, int priority);
  void destroy_stream(Stream& stream);
  bool is_stream(const Stream* stream) const;
  Stream& legacy_stream(int device);
  Stream& per_thread_stream(int device);

  /// Appends work to a stream. `after`: further operations to wait for, with what they know.
  OperationPtr enqueue(Stream& stream, std::shared_ptr<Work> work, const Mark& after = {});
  /// `timed`: the event wants the time.
  Mark record(Stream& stream, bool timed);

  /// A piece of a graph: the nodes before it, by index, and the key that stands for its chain in the order of operations.
  struct Node {
    std::shared_ptr<Work> work;
    int device;
    StreamKey chain;
    std::vector<std::size_t> after;
    Mark wait;              ///< of event wait nodes
    Mark* marks = nullptr;  ///< of event record nodes: gets the mark
  };
  /// Appends a graph to a stream as one operation. Returns the operation that ends it. `previous`: earlier launch of the same graph.
  OperationPtr enqueue_graph(Stream& stream, const std::vector<Node>& nodes, const OperationPtr& previous);
  StreamKey new_key();

  /// Runs work until the operations are done; with `learn` the host then knows them to be complete.
  void wait(const std::vector<OperationPtr>& operations, bool learn = true);
  void wait_stream(Stream& stream);
  void wait_device(int device, bool learn = true);
  void wait_all(bool learn);
  /// Whether everything in the stream is done. Runs one piece of eligible work first when it is not.
  bool query_stream(Stream& stream);
  bool query(const Mark& mark);

  int device_error(int device) const;
  void set_device_error(int device, int error);
  /// cudaDeviceReset: the device's streams but the default ones are gone, and so is its error.
  void reset_device(int device);
  /// Stops the background thread; nothing runs any more unless the program drives it.
  void stop();

 private:
  using Lock = std::unique_lock<std::mutex>;
  enum class Choice : std::uint8_t { wanted_only, any, others_first };
  Scheduler();
  void learn(const std::vector<OperationPtr>& operations);
  void link(const OperationPtr& operation, const OperationPtr& predecessor);
  static void add_to_timeline(Operation& operation, StreamKey stream, const OperationPtr& before,
                              const std::vector<OperationPtr>& after);
  void submit(const OperationPtr& operation);
  OperationPtr append(Stream& stream, std::shared_ptr<Work> work, const Mark& after);
  std::vector<OperationPtr> last_of(Stream& stream);
  void want(const OperationPtr& operation);
  void step(Lock& lock, Choice choice);
  void execute(Lock& lock, const OperationPtr& operation);
  void let_begin_early(const OperationPtr& operation, Stream& stream, Clock clock);
  OperationPtr dependent_of(const OperationPtr& operation) const;
  void complete(const OperationPtr& operation, int result);
  void drive(Lock& lock, const std::vector<OperationPtr>& operations, bool learn);
  bool ask(Lock& lock, const std::vector<OperationPtr>& operations);
  bool all_done(const std::vector<OperationPtr>& operations) const;
  void start_threads();
  void background();
  void host_functions();
  std::uint64_t random(std::uint64_t bound);

  mutable std::mutex mutex_;
  std::condition_variable changed_, work_came_, host_work_came_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<Stream*> legacy_;
  std::vector<int> errors_;
  std::vector<OperationPtr> ready_;
  std::deque<OperationPtr> host_queue_;
  std::uint64_t pending_ = 0;  ///< operations that are not done
  Clock host_clock_;
  StreamKey next_key_ = 1;
  std::uint64_t random_, round_ = 1;
  std::uint32_t pause_us_ = 20;
  bool running_ = false, threads_started_ = false, stopping_ = false, resting_ = false;
  std::chrono::steady_clock::time_point
      driven_;  ///< when the program last ran work, or work came to idle streams
};

}  // namespace emulator
