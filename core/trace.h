#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <variant>
#include <vector>

/// Records the work of the threads of this process, with times, for `nemocube train --profile`.
///
/// Each thread appends to a buffer of its own. While nothing is recorded, a place that would record costs one
/// relaxed load. Memory is bounded: events beyond the limit are counted and dropped. Times are nanoseconds of
/// std::chrono::steady_clock.
namespace nemocube::trace {

enum class Category : std::uint8_t {
  step,
  forward,   ///< a block, or the embeddings or the loss
  backward,  ///< likewise
  optimizer,
  operation,  ///< a zone (core/profile.h), by the clock of the host or of a device
  collective,
  pipeline,  ///< a pass of a microbatch through a chunk of the model, or an exchange between stages
  data,
  checkpoint,
  validation,
};
constexpr std::size_t category_count = 10;
const char* name_of(Category category);

/// Where an event is drawn. Two events of one row lie apart, or one within the other.
using Row = std::int32_t;
constexpr Row own_row = -1;        ///< the row of the recording thread
constexpr Row compute_row = 0;     ///< of the thread that called start()
constexpr Row collective_row = 1;  ///< collectives by MPI: a process executes one at a time
constexpr Row first_device_row =
    2;  ///< and the rows from there on: streams of a CUDA device (core/cuda/streams.h)
constexpr Row first_thread_row = 16;  ///< and the rows from there on: other threads

/// Keys and texts live as long as the process.
struct Argument {
  const char* key = nullptr;  ///< null: no argument
  std::variant<std::int64_t, double, const char*> value = std::int64_t{0};
};
constexpr std::size_t most_arguments = 4;

struct Event {
  const char* name = "";  ///< lives as long as the process
  std::int64_t begin = 0, duration = 0;
  Category category = Category::operation;
  Row row = own_row;
  std::array<Argument, most_arguments> arguments = {};
};

inline std::int64_t nanoseconds(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(t.time_since_epoch()).count();
}
inline std::int64_t now() { return nanoseconds(std::chrono::steady_clock::now()); }

namespace detail {
inline std::atomic<bool> recording = false;
}
inline bool recording() { return detail::recording.load(std::memory_order_relaxed); }

/// About 60 MB of events.
constexpr std::int64_t default_most_events = std::int64_t{1} << 19;
/// Forgets all events and begins to record, at most `most_events` (rounded up to whole pieces of memory of
/// each thread). std::logic_error while something is recorded.
void start(std::int64_t most_events = default_most_events);
/// When stop() returns, no thread appends any more.
void stop();
/// Appends the event, unless nothing is recorded or the event began before start().
void record(const Event& event);

struct Recorded {
  std::vector<Event> events;        ///< by row, then by begin; events that begin together: the longest first
  std::int64_t dropped = 0;         ///< events for which there was no memory
  std::map<Row, std::string> rows;  ///< names of the rows that have events
};
/// Moves the events out. After stop().
Recorded take();

/// An event from here to the end of the scope.
class Span {
 public:
  Span(Category category, const char* name, std::initializer_list<Argument> arguments = {}) {
    if (recording()) [[unlikely]]
      open(category, name, arguments);
  }
  ~Span() {
    if (begin_ != 0) [[unlikely]]
      close();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  void open(Category category, const char* name, std::initializer_list<Argument> arguments);
  void close();

  std::int64_t begin_ = 0;  // 0: nothing was recorded at the beginning
  const char* name_ = nullptr;
  Category category_ = Category::operation;
  std::array<Argument, most_arguments> arguments_;  // unused without a beginning
};

}  // namespace nemocube::trace
