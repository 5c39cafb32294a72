#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/cuda/streams.h"

/// CUDA graphs: work of the device that is captured once and queued again by one launch.
namespace nemocube::cuda {

class Graph {
 public:
  Graph(std::int64_t launches, std::int64_t bytes) : launches_(launches), bytes_(bytes) {}
  virtual ~Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Queues the captured work, after all work of all streams so far. Later work on any stream begins after
  /// the captured work. Counts as one of cuda::launches().
  virtual void launch() = 0;
  std::int64_t launches() const { return launches_; }  ///< of kernels and products in the graph
  /// The most memory that tensors made by the work held at once. The graph has this memory while it runs;
  /// device_allocator() counts it in its peak.
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t launches_, bytes_;
};

/// Captures all that `work` queues on all streams of this thread: nothing runs before launch().
/// `work` must leave behind no tensor that it has made: std::logic_error. Tensors from before
/// that are freed during the capture live as long as the graph. All others whose memory the work
/// uses must not be freed before the graph is.
/// errors  Error of the first call that cannot be captured, or that `work` throws. Nothing of the work has
///         run then, and the streams are as before
inline const Function<std::shared_ptr<Graph>(const std::function<void()>& work)> capture_graph(
    "core/capture_graph");

/// Called with each launch of a graph: the events before and after, and a text about the graph for messages.
using LaunchWatch = std::function<void(const Event& begin, const Event& end, const std::string& text)>;

/// A capture under way on this thread, for code that queues work.
class Capture {
 public:
  Capture();
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  static Capture* current();  ///< null where nothing is captured

  /// The graph keeps the tensor.
  void keep(const Tensor& t) { kept_.tensors.push_back(t); }
  void keep(const MemoryBlock& block) { kept_.blocks.push_back(block); }
  /// Called when the capture ends, with a graph or without, the last one first.
  void at_end(std::function<void()> call) { at_end_.push_back(std::move(call)); }
  /// Called with each launch of the graph. Everything that `call` uses must live as long as the graph.
  void at_launch(std::function<void()> call) { kept_.at_launch.push_back(std::move(call)); }
  /// For operations that are watched while they run: the watch of the first
  /// operation gets all launches of the graph.
  void watch(const std::string& operation, const LaunchWatch& watch);

  /// Things that live as long as the graph.
  struct Kept {
    std::vector<Tensor> tensors;
    std::vector<MemoryBlock> blocks;
    std::vector<std::function<void()>> at_launch;
    LaunchWatch watch;
    std::string first_watched;
    std::int64_t watched = 0;
    /// "launch 2 of a CUDA graph with 3 operations, the first captured as all_reduce number 7 (...)"
    std::string text(std::int64_t launch) const;
  };
  Kept take() { return std::move(kept_); }

 private:
  Kept kept_;
  std::vector<std::function<void()>> at_end_;
};

/// For calls that cannot be captured: throws Error during a capture. `what` names the
/// call, as in "the host waits for all work".
void refuse_in_capture(std::string_view what);

}  // namespace nemocube::cuda
