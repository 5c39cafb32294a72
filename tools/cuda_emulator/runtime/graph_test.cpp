#include <algorithm>

#include "runtime/runtime_test.h"

using namespace emulator::test;

namespace {

struct Letters {
  std::mutex mutex;
  std::string text;
};
struct Letter {
  Letters* letters;
  char name;
};
void CUDART_CB write_letter(void* data) {
  const Letter* const letter = static_cast<const Letter*>(data);
  const std::lock_guard lock(letter->letters->mutex);
  letter->letters->text += letter->name;
}

cudaGraphNode_t host_node(cudaGraph_t graph, std::vector<cudaGraphNode_t> after, Letter& letter) {
  const cudaHostNodeParams params{write_letter, &letter};
  cudaGraphNode_t node = nullptr;
  REQUIRE_OK(cudaGraphAddHostNode(&node, graph, after.data(), after.size(), &params));
  return node;
}

std::size_t node_count(cudaGraph_t graph) {
  std::size_t count = 0;
  REQUIRE_OK(cudaGraphGetNodes(graph, nullptr, &count));
  return count;
}

}  // namespace

TEST_CASE("nodes run along the edges, in other orders where there is none") {
  Letters letters;
  Letter a{&letters, 'a'}, b{&letters, 'b'}, c{&letters, 'c'}, d{&letters, 'd'};
  cudaGraph_t graph;
  REQUIRE_OK(cudaGraphCreate(&graph, 0));
  const cudaGraphNode_t first = host_node(graph, {}, a);
  const cudaGraphNode_t left = host_node(graph, {first}, b);
  const cudaGraphNode_t right = host_node(graph, {first}, c);
  host_node(graph, {left, right}, d);
  cudaGraphExec_t exec;
  REQUIRE_OK(cudaGraphInstantiate(&exec, graph, 0));
  REQUIRE_OK(cudaGraphDestroy(graph));  // the executable graph is a copy
  TestStream stream;
  for (int i = 0; i < 40; ++i) REQUIRE_OK(cudaGraphLaunch(exec, stream));
  REQUIRE_OK(cudaStreamSynchronize(stream));
  REQUIRE(letters.text.size() == 160);
  bool left_first = false, right_first = false;
  for (std::size_t i = 0; i < 160; i += 4) {
    const std::string launch = letters.text.substr(i, 4);
    left_first |= launch == "abcd";
    right_first |= launch == "acbd";
    CHECK((launch == "abcd" || launch == "acbd"));
  }
  CHECK(left_first);
  CHECK(right_first);
  CHECK_OK(cudaGraphExecDestroy(exec));
}

TEST_CASE("launches of one graph do not overlap, whatever their streams") {
  Letters letters;
  Letter a{&letters, 'a'}, b{&letters, 'b'};
  cudaGraph_t graph;
  REQUIRE_OK(cudaGraphCreate(&graph, 0));
  host_node(graph, {host_node(graph, {}, a)}, b);
  cudaGraphExec_t exec;
  REQUIRE_OK(cudaGraphInstantiate(&exec, graph, 0));
  TestStream first, second;
  for (int i = 0; i < 10; ++i) REQUIRE_OK(cudaGraphLaunch(exec, i % 2 ? first : second));
  REQUIRE_OK(cudaDeviceSynchronize());
  CHECK(letters.text == "abababababababababab");
  CHECK_OK(cudaGraphExecDestroy(exec));
  CHECK_OK(cudaGraphDestroy(graph));
}

TEST_CASE("capture of a fork and a join") {
  Ints x(4), y(4), sum(8);
  TestStream main, side;
  TestEvent fork, join;
  REQUIRE_OK(cudaStreamBeginCapture(main, cudaStreamCaptureModeGlobal));
  REQUIRE_OK(cudaMemsetAsync(x, 1, 16, main));
  REQUIRE_OK(cudaEventRecord(fork, main));
  REQUIRE_OK(cudaStreamWaitEvent(side, fork, 0));
  REQUIRE_OK(cudaMemsetAsync(y, 2, 16, side));
  cudaStreamCaptureStatus status;
  REQUIRE_OK(cudaStreamIsCapturing(side, &status));
  CHECK(status == cudaStreamCaptureStatusActive);
  REQUIRE_OK(cudaMemcpyAsync(sum, x, 16, cudaMemcpyDeviceToDevice, main));
  REQUIRE_OK(cudaEventRecord(join, side));
  REQUIRE_OK(cudaStreamWaitEvent(main, join, 0));
  REQUIRE_OK(cudaMemcpyAsync(sum + 4, y, 16, cudaMemcpyDeviceToDevice, main));
  cudaGraph_t graph;
  REQUIRE_OK(cudaStreamEndCapture(main, &graph));
  REQUIRE_OK(cudaStreamIsCapturing(side, &status));
  CHECK(status == cudaStreamCaptureStatusNone);
  CHECK(node_count(graph) == 4);
  std::size_t edges = 0;
  REQUIRE_OK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  CHECK(edges == 4);  // x to y, x to its copy, both to the last copy
  cudaGraphExec_t exec;
  REQUIRE_OK(cudaGraphInstantiate(&exec, graph, 0));
  REQUIRE_OK(cudaGraphLaunch(exec, main));
  REQUIRE_OK(cudaStreamSynchronize(main));
  const int ones = 0x01010101, twos = 0x02020202;
  CHECK(sum.values() == std::vector<int>{ones, ones, ones, ones, twos, twos, twos, twos});
  CHECK_OK(cudaGraphExecDestroy(exec));
  CHECK_OK(cudaGraphDestroy(graph));
}

TEST_CASE("a stream is destroyed while it is captured") {
  Ints x(4);
  TestStream main;
  TestEvent fork, join;
  cudaStream_t side;
  cudaGraph_t graph;
  for (const bool joins : {true, false}) {
    REQUIRE_OK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    REQUIRE_OK(cudaStreamBeginCapture(main, cudaStreamCaptureModeGlobal));
    REQUIRE_OK(cudaEventRecord(fork, main));
    REQUIRE_OK(cudaStreamWaitEvent(side, fork, 0));
    REQUIRE_OK(cudaMemsetAsync(x, 2, 16, side));
    REQUIRE_OK(cudaEventRecord(join, side));
    if (joins) REQUIRE_OK(cudaStreamWaitEvent(main, join, 0));
    REQUIRE_OK(cudaStreamDestroy(side));
    if (joins) {
      REQUIRE_OK(cudaStreamEndCapture(main, &graph));
      CHECK(node_count(graph) == 1);
      CHECK_OK(cudaGraphDestroy(graph));
    } else {
      CHECK(cudaStreamEndCapture(main, &graph) == cudaErrorStreamCaptureUnjoined);
    }
  }
  cudaGetLastError();
}

TEST_CASE("mistakes in captures") {
  TestStream stream, side;
  TestEvent event;
  cudaGraph_t graph;
  SUBCASE("a stream that is not joined") {
    REQUIRE_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    REQUIRE_OK(cudaEventRecord(event, stream));
    REQUIRE_OK(cudaStreamWaitEvent(side, event, 0));
    Log log;
    REQUIRE_OK(cudaLaunchHostFunc(
        side, [](void*) {}, nullptr));
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureUnjoined);
    CHECK(graph == nullptr);
  }
  SUBCASE("a call that must not be made") {
    REQUIRE_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    void* pointer;
    CHECK(cudaMalloc(&pointer, 4) == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaLaunchHostFunc(
              stream, [](void*) {}, nullptr) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  }
  SUBCASE("the same call in relaxed mode") {
    REQUIRE_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    void* pointer;
    CHECK_OK(cudaMalloc(&pointer, 4));
    CHECK_OK(cudaFree(pointer));
    CHECK_OK(cudaStreamEndCapture(stream, &graph));
    CHECK_OK(cudaGraphDestroy(graph));
  }
  SUBCASE("synchronisation with the captured stream") {
    REQUIRE_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    CHECK(cudaStreamSynchronize(stream) == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  }
  SUBCASE("the legacy default stream") {
    REQUIRE_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaLaunchHostFunc(
              nullptr, [](void*) {}, nullptr) == cudaErrorStreamCaptureImplicit);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal) == cudaErrorStreamCaptureUnsupported);
  }
  SUBCASE("an event from outside") {
    REQUIRE_OK(cudaEventRecord(event, side));
    REQUIRE_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaStreamWaitEvent(stream, event, 0) == cudaErrorStreamCaptureIsolation);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  }
  SUBCASE("two captures meet") {
    REQUIRE_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    REQUIRE_OK(cudaStreamBeginCapture(side, cudaStreamCaptureModeGlobal));
    REQUIRE_OK(cudaEventRecord(event, stream));
    CHECK(cudaStreamWaitEvent(side, event, 0) == cudaErrorStreamCaptureMerge);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamEndCapture(side, &graph) == cudaErrorStreamCaptureInvalidated);
  }
  SUBCASE("a captured event is asked for") {
    REQUIRE_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    REQUIRE_OK(cudaEventRecord(event, stream));
    CHECK(cudaEventQuery(event) == cudaErrorCapturedEvent);
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  }
  SUBCASE("the wrong stream ends the capture") {
    REQUIRE_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    REQUIRE_OK(cudaEventRecord(event, stream));
    REQUIRE_OK(cudaStreamWaitEvent(side, event, 0));
    CHECK(cudaStreamEndCapture(side, &graph) == cudaErrorStreamCaptureUnmatched);
    CHECK_OK(cudaStreamEndCapture(stream, &graph));
    CHECK_OK(cudaGraphDestroy(graph));
  }
  cudaGetLastError();
}

TEST_CASE("an executable graph takes new parameters, not a new shape") {
  Ints x(4);
  cudaGraph_t graph;
  REQUIRE_OK(cudaGraphCreate(&graph, 0));
  cudaMemsetParams params{};
  params.dst = x;
  params.elementSize = 4;
  params.value = 5;
  params.width = 4;
  params.height = 1;
  cudaGraphNode_t node;
  REQUIRE_OK(cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &params));
  cudaGraphExec_t exec;
  REQUIRE_OK(cudaGraphInstantiate(&exec, graph, 0));
  params.value = 6;
  REQUIRE_OK(cudaGraphExecMemsetNodeSetParams(exec, node, &params));
  REQUIRE_OK(cudaGraphLaunch(exec, nullptr));
  CHECK(x.values() == std::vector<int>(4, 6));
  cudaMemsetParams kept;
  REQUIRE_OK(cudaGraphMemsetNodeGetParams(node, &kept));
  CHECK(kept.value == 5);  // the graph itself is as it was
  cudaGraphExecUpdateResultInfo info;
  REQUIRE_OK(cudaGraphExecUpdate(exec, graph, &info));
  REQUIRE_OK(cudaGraphLaunch(exec, nullptr));
  CHECK(x.values() == std::vector<int>(4, 5));
  REQUIRE_OK(cudaGraphNodeSetEnabled(exec, node, 0));
  REQUIRE_OK(cudaMemset(x, 0, 16));
  REQUIRE_OK(cudaGraphLaunch(exec, nullptr));
  CHECK(x.values() == std::vector<int>(4, 0));
  cudaGraphNode_t empty;
  REQUIRE_OK(cudaGraphAddEmptyNode(&empty, graph, &node, 1));
  CHECK(cudaGraphExecUpdate(exec, graph, &info) == cudaErrorGraphExecUpdateFailure);
  CHECK(info.result == cudaGraphExecUpdateErrorTopologyChanged);
  cudaGetLastError();
  CHECK_OK(cudaGraphExecDestroy(exec));
  CHECK_OK(cudaGraphDestroy(graph));
}

TEST_CASE("clones, child graphs and cycles") {
  Letters letters;
  Letter a{&letters, 'a'}, b{&letters, 'b'}, c{&letters, 'c'};
  cudaGraph_t child, graph, clone;
  REQUIRE_OK(cudaGraphCreate(&child, 0));
  host_node(child, {host_node(child, {}, a)}, b);
  REQUIRE_OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t inner;
  REQUIRE_OK(cudaGraphAddChildGraphNode(&inner, graph, nullptr, 0, child));
  const cudaGraphNode_t last = host_node(graph, {inner}, c);
  REQUIRE_OK(cudaGraphClone(&clone, graph));
  cudaGraphNode_t twin;
  REQUIRE_OK(cudaGraphNodeFindInClone(&twin, last, clone));
  CHECK(twin != last);
  cudaGraphExec_t exec;
  REQUIRE_OK(cudaGraphInstantiate(&exec, clone, 0));
  REQUIRE_OK(cudaGraphLaunch(exec, nullptr));
  REQUIRE_OK(cudaDeviceSynchronize());
  CHECK(letters.text == "abc");
  CHECK_OK(cudaGraphExecDestroy(exec));
  REQUIRE_OK(cudaGraphAddDependencies(graph, &last, &inner, nullptr, 1));
  CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaErrorInvalidValue);
  cudaGetLastError();
  for (const cudaGraph_t g : {child, graph, clone}) CHECK_OK(cudaGraphDestroy(g));
}

TEST_CASE("memory of a graph has one address, and must be freed before the next launch") {
  TestStream stream;
  REQUIRE_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  void* kept = nullptr;
  void* freed = nullptr;
  REQUIRE_OK(cudaMallocAsync(&kept, 64, stream));
  REQUIRE_OK(cudaMallocAsync(&freed, 64, stream));
  REQUIRE_OK(cudaMemsetAsync(kept, 3, 64, stream));
  REQUIRE_OK(cudaMemsetAsync(freed, 4, 64, stream));
  REQUIRE_OK(cudaFreeAsync(freed, stream));
  cudaGraph_t graph;
  REQUIRE_OK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec;
  REQUIRE_OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int launch = 0; launch < 2; ++launch) {
    REQUIRE_OK(cudaGraphLaunch(exec, stream));
    int value = 0;
    REQUIRE_OK(cudaMemcpyAsync(&value, kept, 4, cudaMemcpyDeviceToHost, stream));
    CHECK(value == 0x03030303);
    CHECK(cudaGraphLaunch(exec, stream) == cudaErrorInvalidValue);
    cudaGetLastError();
    REQUIRE_OK(cudaFreeAsync(kept, stream));
  }
  REQUIRE_OK(cudaStreamSynchronize(stream));
  CHECK_OK(cudaGraphExecDestroy(exec));
  CHECK_OK(cudaGraphDestroy(graph));
}

TEST_CASE("user objects end with the last graph that holds them") {
  static int destroyed;
  destroyed = 0;
  cudaUserObject_t object;
  REQUIRE_OK(cudaUserObjectCreate(
      &object, &destroyed, [](void* p) { ++*static_cast<int*>(p); }, 1, cudaUserObjectNoDestructorSync));
  cudaGraph_t graph, clone;
  REQUIRE_OK(cudaGraphCreate(&graph, 0));
  REQUIRE_OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  REQUIRE_OK(cudaGraphClone(&clone, graph));
  REQUIRE_OK(cudaGraphDestroy(graph));
  CHECK(destroyed == 0);
  REQUIRE_OK(cudaGraphDestroy(clone));
  CHECK(destroyed == 1);
}
