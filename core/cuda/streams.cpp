#include "core/cuda/streams.h"

namespace nemocube::cuda {
namespace {
thread_local Stream current_stream = Stream::compute;
}

OnStream::OnStream(Stream stream) : outer_(std::exchange(current_stream, stream)) {}
OnStream::~OnStream() { current_stream = outer_; }
Stream OnStream::current() { return current_stream; }

}  // namespace nemocube::cuda
