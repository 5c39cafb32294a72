#include "core/cuda/graph.h"

#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "core/cuda/device.cuh"
#include "core/cuda/pool.cuh"
#include "core/error.h"

namespace nemocube::cuda {
namespace {

constexpr Stream others[] = {Stream::copies, Stream::communication, Stream::messages, Stream::background};

void others_wait_for(const Event& event) {
  for (const Stream s : others) wait_for_event(s, event);
}
void wait_for_others() {
  for (const Stream s : others) wait_for_event(Stream::compute, record_event(s));
}

struct DestroyGraph {
  void operator()(cudaGraph_t graph) const { static_cast<void>(cudaGraphDestroy(graph)); }
};
using CudaGraph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph>;

/// Frees the blocks with its last owner, who does not capture.
std::shared_ptr<const Capture::Kept> kept_by(Capture& capture) {
  return {new Capture::Kept(capture.take()), [](const Capture::Kept* kept) {
            for (const MemoryBlock& block : kept->blocks) free_kept(block);
            delete kept;
          }};
}

class CapturedGraph final : public Graph {
 public:
  CapturedGraph(cudaGraph_t graph, std::shared_ptr<const Capture::Kept> kept, std::int64_t launches,
                std::int64_t bytes)
      : Graph(launches, bytes), kept_(std::move(kept)) {
    NEMOCUBE_CUDA(cudaGraphInstantiate(&exec_, graph, 0));
  }

  // Not checked: the process may be about to end, and CUDA with it. Launches under way keep what they run.
  ~CapturedGraph() override { static_cast<void>(cudaGraphExecDestroy(exec_)); }

  void launch() override {
    wait_for_others();
    const Event begin = record_event(Stream::compute);
    count_graph_memory(bytes());
    note_launch("a CUDA graph");
    cudaError_t error = try_launch();
    if (error == cudaErrorMemoryAllocation) {
      release_free_memory();
      error = try_launch();
    }
    if (error == cudaErrorMemoryAllocation) fail_for_want_of("a CUDA graph", bytes());
    check(error, "cudaGraphLaunch");
    const Event end = record_event(Stream::compute);
    others_wait_for(end);
    ++launched_;
    for (const auto& call : kept_->at_launch) call();
    if (kept_->watch) kept_->watch(begin, end, kept_->text(launched_));
  }

 private:
  cudaError_t try_launch() const {
    const cudaError_t error = cudaGraphLaunch(exec_, stream_of(Stream::compute));
    if (error == cudaErrorMemoryAllocation) static_cast<void>(cudaGetLastError());  // forgets the error
    return error;
  }

  cudaGraphExec_t exec_ = nullptr;
  std::int64_t launched_ = 0;
  std::shared_ptr<const Capture::Kept> kept_;
};

/// Between begin and end, all streams of the thread are captured: they begin with a wait for the first and
/// end with one of the first for them.
class Recording {
 public:
  Recording() : launches_before_(count_launches()) {
    begin_captured_memory();
    NEMOCUBE_CUDA(cudaStreamBeginCapture(stream_of(Stream::compute), cudaStreamCaptureModeThreadLocal));
    try {
      others_wait_for(record_event(Stream::compute));
    } catch (...) {
      abandon();
      throw;
    }
  }

  CudaGraph end() {
    wait_for_others();
    cudaGraph_t graph = nullptr;
    NEMOCUBE_CUDA(cudaStreamEndCapture(stream_of(Stream::compute), &graph));
    return CudaGraph(graph);
  }

  // After an error. Errors of these calls follow from it, and are not reported.
  void abandon() noexcept {
    cudaGraph_t graph = nullptr;
    static_cast<void>(cudaStreamEndCapture(stream_of(Stream::compute), &graph));
    const CudaGraph unfinished(graph);
    static_cast<void>(cudaGetLastError());
    take_launches();
  }

  /// What was captured is not launched yet.
  std::int64_t take_launches() {
    const std::int64_t captured = count_launches() - launches_before_;
    set_launches(launches_before_);
    return captured;
  }

 private:
  std::int64_t launches_before_;
};

std::shared_ptr<Graph> capture(const std::function<void()>& work) {
  expect(OnStream::current() == Stream::compute, "a capture that does not begin on the stream of kernels");
  // Where the same work has run before, what it held lies free in the pool. The graph takes memory of its
  // own.
  release_free_memory();
  std::optional<Capture> current(std::in_place);
  Recording recording;
  CudaGraph graph;
  std::exception_ptr failure;
  try {
    work();
    graph = recording.end();
  } catch (...) {
    recording.abandon();
    failure = std::current_exception();
  }
  std::shared_ptr<const Capture::Kept> kept = kept_by(*current);
  current.reset();
  const std::int64_t bytes = end_captured_memory();
  if (failure) std::rethrow_exception(failure);
  const std::int64_t launches = recording.take_launches();
  return std::make_shared<CapturedGraph>(graph.get(), std::move(kept), launches, bytes);
}

const Provide provided(capture_graph, capture);

}  // namespace
}  // namespace nemocube::cuda
