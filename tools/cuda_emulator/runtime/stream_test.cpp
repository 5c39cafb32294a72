#include <cstring>

#include "runtime/runtime_test.h"

using namespace emulator::test;

TEST_CASE("operations of a stream run in order") {
  TestStream stream;
  Log log;
  for (char name = 'a'; name <= 'z'; ++name) log.add(stream, name);
  REQUIRE_OK(cudaStreamSynchronize(stream));
  CHECK(log.text() == "abcdefghijklmnopqrstuvwxyz");
}

TEST_CASE("streams without events mix") {
  TestStream first, second;
  Log log;
  for (int i = 0; i < 200; ++i) {
    log.add(first, '1');
    log.add(second, '2');
  }
  REQUIRE_OK(cudaDeviceSynchronize());
  const std::string text = log.text();
  CHECK(text.size() == 400);
  // Neither the order of the calls nor one stream after the other.
  std::string called;
  for (int i = 0; i < 200; ++i) called += "12";
  CHECK(text != called);
  CHECK(text.substr(0, 200) != std::string(200, '1'));
  CHECK(text.substr(0, 200) != std::string(200, '2'));
}

TEST_CASE("an event orders two streams, and stands for what its last record saw") {
  TestStream first, second;
  TestEvent event;
  Log log;
  Gate gate(first);
  log.add(first, 'a');
  REQUIRE_OK(cudaEventRecord(event, first));
  log.add(first, 'b');
  REQUIRE_OK(cudaStreamWaitEvent(second, event, 0));
  // A later record changes nothing for the wait before.
  TestStream third;
  REQUIRE_OK(cudaEventRecord(event, third));
  log.add(second, 'c');
  CHECK(cudaStreamQuery(second) == cudaErrorNotReady);
  CHECK(log.text().empty());
  gate.open();
  REQUIRE_OK(cudaDeviceSynchronize());
  CHECK(log.before('a', 'b'));
  CHECK(log.before('a', 'c'));
}

TEST_CASE("events that were never recorded are complete") {
  TestStream stream;
  TestEvent event;
  CHECK_OK(cudaEventQuery(event));
  CHECK_OK(cudaEventSynchronize(event));
  CHECK_OK(cudaStreamWaitEvent(stream, event, 0));
  float ms = 0;
  TestEvent other;
  CHECK(cudaEventElapsedTime(&ms, event, other) == cudaErrorInvalidResourceHandle);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
}

TEST_CASE("times between events") {
  TestStream stream;
  TestEvent begin, end, untimed(cudaEventDisableTiming);
  REQUIRE_OK(cudaEventRecord(begin, stream));
  Gate gate(stream);
  REQUIRE_OK(cudaEventRecord(end, stream));
  REQUIRE_OK(cudaEventRecord(untimed, stream));
  float ms = -1;
  CHECK(cudaEventElapsedTime(&ms, begin, end) == cudaErrorNotReady);
  CHECK(cudaGetLastError() == cudaSuccess);  // an answer, not a failure
  gate.open();
  REQUIRE_OK(cudaEventSynchronize(untimed));
  CHECK_OK(cudaEventElapsedTime(&ms, begin, end));
  CHECK(ms >= 0);
  CHECK(cudaEventElapsedTime(&ms, begin, untimed) == cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

TEST_CASE("the legacy default stream waits for blocking streams, and they for it") {
  TestStream first, second, apart(cudaStreamNonBlocking);
  Log log;
  Ints device(1);
  {
    Gate gate(first);
    log.add(first, 'a');
    log.add(nullptr, 'b');
    log.add(second, 'c');
    REQUIRE_OK(cudaMemsetAsync(device, 0, sizeof(int), apart));
    REQUIRE_OK(cudaStreamSynchronize(apart));  // has no edges to the others
    CHECK(cudaStreamQuery(second) == cudaErrorNotReady);
    CHECK(log.text().empty());
  }
  REQUIRE_OK(cudaStreamSynchronize(second));
  CHECK(log.text() == "abc");
}

TEST_CASE("a non-blocking stream does not hold the default stream") {
  TestStream apart(cudaStreamNonBlocking);
  Log log;
  Ints device(1);
  Gate gate(apart);
  log.add(apart, 'a');
  REQUIRE_OK(cudaMemset(device, 0, sizeof(int)));
  REQUIRE_OK(cudaStreamSynchronize(nullptr));
  CHECK(log.text().empty());
  gate.open();
  REQUIRE_OK(cudaStreamSynchronize(apart));
  CHECK(log.text() == "a");
}

TEST_CASE("a destroyed stream finishes its work") {
  Log log;
  {
    TestStream stream;
    log.add(stream, 'a');
  }
  REQUIRE_OK(cudaDeviceSynchronize());
  CHECK(log.text() == "a");
}

TEST_CASE("queries make progress, and work goes on when the host only watches") {
  TestStream stream;
  Log log;
  log.add(stream, 'a');
  log.add(stream, 'b');
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
  }
  CHECK(log.text() == "ab");
  log.add(stream, 'c');
  while (log.text() != "abc") std::this_thread::yield();
  REQUIRE_OK(cudaStreamSynchronize(stream));
}

TEST_CASE("host functions must not call CUDA; callbacks get the state of the stream") {
  TestStream stream;
  static std::atomic<int> inside;
  static std::atomic<int> status;
  inside = status = -1;
  REQUIRE_OK(cudaLaunchHostFunc(
      stream,
      [](void*) {
        void* pointer;
        inside = cudaMalloc(&pointer, 4);
      },
      nullptr));
  REQUIRE_OK(cudaStreamAddCallback(
      stream, [](cudaStream_t, cudaError_t error, void*) { status = error; }, nullptr, 0));
  REQUIRE_OK(cudaStreamSynchronize(stream));
  CHECK(inside == cudaErrorNotPermitted);
  CHECK(status == cudaSuccess);
}

TEST_CASE("pinned sources are read when the copy runs, pageable ones at the call") {
  TestStream stream;
  Ints device(2);
  int* pinned = nullptr;
  REQUIRE_OK(cudaMallocHost(reinterpret_cast<void**>(&pinned), sizeof(int)));
  int pageable = 1;
  *pinned = 1;
  {
    Gate gate(stream);
    REQUIRE_OK(cudaMemcpyAsync(device, pinned, sizeof(int), cudaMemcpyHostToDevice, stream));
    REQUIRE_OK(cudaMemcpyAsync(device + 1, &pageable, sizeof(int), cudaMemcpyHostToDevice, stream));
    *pinned = pageable = 2;
  }
  REQUIRE_OK(cudaStreamSynchronize(stream));
  CHECK(device.values() == std::vector<int>{2, 1});
  CHECK_OK(cudaFreeHost(pinned));
}

TEST_CASE("copies to pinned memory are asynchronous, to pageable memory they are over at once") {
  TestStream stream;
  Ints device(1);
  REQUIRE_OK(cudaMemsetAsync(device, 0, sizeof(int), stream));
  int* pinned = nullptr;
  REQUIRE_OK(cudaMallocHost(reinterpret_cast<void**>(&pinned), sizeof(int)));
  *pinned = 7;
  {
    Gate gate(stream);
    REQUIRE_OK(cudaMemcpyAsync(pinned, device, sizeof(int), cudaMemcpyDeviceToHost, stream));
    CHECK(*pinned == 7);
  }
  REQUIRE_OK(cudaStreamSynchronize(stream));
  CHECK(*pinned == 0);
  int pageable = 7;
  REQUIRE_OK(cudaMemcpyAsync(&pageable, device, sizeof(int), cudaMemcpyDeviceToHost, stream));
  CHECK(pageable == 0);
  CHECK_OK(cudaFreeHost(pinned));
}

TEST_CASE("handles that are no streams or events are refused") {
  int something = 0;
  CHECK(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(&something)) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventSynchronize(reinterpret_cast<cudaEvent_t>(&something)) == cudaErrorInvalidResourceHandle);
  CHECK(cudaPeekAtLastError() == cudaErrorInvalidResourceHandle);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("attributes of a stream are kept") {
  TestStream stream, other;
  cudaLaunchAttributeValue value{};
  REQUIRE_OK(cudaStreamGetAttribute(stream, cudaLaunchAttributeSynchronizationPolicy, &value));
  CHECK(value.syncPolicy == cudaSyncPolicyAuto);
  Ints window(1000);
  value = {};
  value.accessPolicyWindow = {window.data, 4000, 0.5f, cudaAccessPropertyPersisting,
                              cudaAccessPropertyStreaming};
  REQUIRE_OK(cudaStreamSetAttribute(stream, cudaLaunchAttributeAccessPolicyWindow, &value));
  value.accessPolicyWindow.hitRatio = 2;
  CHECK(cudaStreamSetAttribute(stream, cudaLaunchAttributeAccessPolicyWindow, &value) ==
        cudaErrorInvalidValue);
  value = {};
  value.priority = -3;
  REQUIRE_OK(cudaStreamSetAttribute(stream, cudaLaunchAttributePriority, &value));
  int priority = 0;
  REQUIRE_OK(cudaStreamGetPriority(stream, &priority));
  CHECK(priority == -3);

  REQUIRE_OK(cudaStreamGetAttribute(other, cudaLaunchAttributeAccessPolicyWindow, &value));
  CHECK(value.accessPolicyWindow.num_bytes == 0);
  REQUIRE_OK(cudaStreamCopyAttributes(other, stream));
  REQUIRE_OK(cudaStreamGetAttribute(other, cudaLaunchAttributeAccessPolicyWindow, &value));
  CHECK(value.accessPolicyWindow.base_ptr == window.data);
  CHECK(value.accessPolicyWindow.hitProp == cudaAccessPropertyPersisting);
  REQUIRE_OK(cudaStreamGetAttribute(other, cudaLaunchAttributePriority, &value));
  CHECK(value.priority == -3);
  CHECK(cudaStreamGetAttribute(stream, cudaLaunchAttributeCooperative, &value) == cudaErrorInvalidValue);
  cudaGetLastError();
}
