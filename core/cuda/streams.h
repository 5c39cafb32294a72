#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/cuda/module.h"
#include "core/tensor.h"

/// Streams of the device, events between them, and pinned host memory, for code that is not CUDA code.
namespace nemocube::cuda {

/// Work of one stream runs in the order of the calls; the streams run beside each other. `background` is for
/// communication on which nothing waits yet.
enum class Stream : std::uint8_t { compute, copies, communication, messages, background };
constexpr int stream_count = 5;

/// Names the stream on which this thread queues kernels, copies and allocations while an object lives. The
/// innermost object counts; without an object the stream is Stream::compute.
class OnStream {
 public:
  explicit OnStream(Stream stream);
  ~OnStream();
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

  static Stream current();

 private:
  Stream outer_;
};

/// A point in the work of a stream. The default is a point that is reached.
struct Event {
  std::shared_ptr<void> point;
};
/// The end of all work that has been queued on `stream`.
inline const Function<Event(Stream stream)> record_event("core/record_event");
/// The same, for seconds_between(). Takes the host longer: 0.8 us and not 0.2 us with an H200.
inline const Function<Event(Stream stream)> record_timed_event("core/record_timed_event");
/// Of the device, between two timed events that are reached and were not captured.
inline const Function<double(const Event& begin, const Event& end)> seconds_between("core/seconds_between");
/// When a timed event was reached that was recorded after time_zones(true) (core/cuda/runtime.h) and not
/// captured: nanoseconds of std::chrono::steady_clock.
inline const Function<std::int64_t(const Event& event)> host_nanoseconds("core/host_nanoseconds");
/// Work queued on `stream` from now on begins after the event. The host goes on.
inline const Function<void(Stream stream, const Event& event)> wait_for_event("core/wait_for_event");
/// Never in a capture (core/cuda/graph.h).
inline const Function<bool(const Event& event)> event_reached("core/event_reached");
/// The host waits, which is counted (core/host_wait.h).
inline const Function<void(const Event& event)> host_wait_for_event("core/host_wait_for_event");

/// To be called when work on `stream` that uses the memory of `t` has been queued, while `t` lives. Once
/// freed, the memory serves other tensors only after all work that was queued on `stream` by then. The stream
/// that a tensor was made on needs no call, nor does Stream::compute.
inline const Function<void(const Tensor& t, Stream stream)> note_use("core/note_use");

/// Behind Staging. A block is handed out again once the event is reached.
inline const Function<MemoryBlock(std::int64_t bytes)> take_staging("core/take_staging");
inline const Function<void(const MemoryBlock& block, Event last_use)> give_back_staging(
    "core/give_back_staging");
inline const Function<MemoryStats()> staging_stats("core/staging_stats");

/// Pinned host memory from a pool: copies between it and the device do not stop the host. The pool holds 64
/// MiB. Where these are not enough, the host waits for blocks whose copies are under way, and takes more
/// memory only when no copy is.
class Staging {
 public:
  explicit Staging(std::int64_t bytes) : block_(take_staging(bytes)) {}
  ~Staging() { give_back_staging(block_, last_use_); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(block_.data); }
  std::int64_t bytes() const { return block_.bytes; }  ///< at least as many as were asked for
  /// No other Staging gets the memory before `event`.
  void used_until(Event event) { last_use_ = std::move(event); }

 private:
  MemoryBlock block_;
  Event last_use_;
};

/// Queue a copy of a contiguous tensor of the device on the thread's stream and do not wait. The event is its
/// end; the staging memory is used until then.
inline const Function<Event(const Tensor& to, Staging& from)> upload("core/upload");
inline const Function<Event(Staging& to, const Tensor& from)> download("core/download");

}  // namespace nemocube::cuda
