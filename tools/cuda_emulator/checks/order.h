#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "memory/operation.h"

/// Which operations of the program happen before which: kernels, copies, fills, allocations and frees in streams, and what the host
/// does itself. Two operations that touch the same memory and are not ordered race, whatever order they happened to run in.
namespace emulator {

/// For each stream, how many of its operations are known to be complete.
using Clock = std::map<StreamKey, std::uint32_t>;
void join(Clock& into, const Clock& other);

/// All functions are thread-safe. Identifiers are dense from 1 on; operations live as long as the process (about 50 bytes each).
class OperationOrder {
 public:
  static OperationOrder& instance();
  /// A new operation of a stream, after all that the clock holds and after the stream's earlier operations. Sets the stream's tick in
  /// the clock to the new operation, so that what comes after the clock comes after the operation.
  /// `shown`: the stream that messages name, if not this one.
  OperationId add(StreamKey stream, Clock& clock, const char* what, StreamKey shown = 0);
  /// Whether `first` happens before `second`, or they are the same. Takes no lock.
  bool before(OperationId first, OperationId second) const;
  /// An identifier for the readers `first` and `second` together: it happens before what both happen before. `first` may be such
  /// a pair itself; members that come before `second` are dropped, so that the result is `second` when all do.
  OperationId both(OperationId first, OperationId second);
  StreamKey stream_of(OperationId id) const;
  /// "kernel saxpy in stream 2", "cudaFree by the host", for messages.
  std::string describe(OperationId id) const;
  void set_description(OperationId id, std::string text);

 private:
  struct State;
  OperationOrder();
  std::unique_ptr<State> state_;
};

}  // namespace emulator
