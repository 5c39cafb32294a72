#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

/// The memory that the ranks of a communicator share, as processes or as threads of one process.
namespace emulator::nccl {

/// What a collective call says; all ranks of a communicator must say the same.
struct Call {
  std::uint64_t number = 0;  ///< counts the communicator's collectives from 1
  std::uint64_t count = 0;
  std::uint64_t scalar =
      0;  ///< bits of the factor of ncclRedOpCreatePreMulSum, in its type; each rank has its own
  std::int32_t kind = 0, type = 0, operation = 0, root = 0;
};

/// A rank of a communicator as others see it in messages and in the search for deadlocks.
struct Member {
  std::uint64_t communicator = 0;  ///< hash of the segment's name
  std::int32_t rank = 0;
};

/// What a rank waits for, for the search for deadlocks. Its writer is one thread, its readers may see a mix of old and new: they
/// look twice (`version`).
struct WaitRecord {
  static constexpr int capacity = 8;
  std::atomic<std::uint32_t> version;  ///< odd while the record changes
  std::atomic<std::uint32_t> polls;    ///< tries without progress since the record changed
  std::atomic<std::int32_t> count;     ///< 0: nothing is known that this rank waits for
  std::atomic<std::uint64_t> communicators[capacity];
  std::atomic<std::int32_t> ranks[capacity];
};

enum class RankState : std::int32_t { absent, joined, left, aborted };

/// One rank's part of the segment.
struct RankArea {
  std::atomic<RankState> state;
  std::atomic<std::int32_t> pid, device;
  std::atomic<std::uint64_t> process_start;  ///< with the pid names one process for good

  struct Split {
    std::atomic<std::uint32_t> generation;
    std::atomic<std::int32_t> color, key;
  };
  Split split[2];  ///< of odd and even calls of ncclCommSplit

  // Collectives publish their data in pieces, which all ranks count alike. Piece p lies in slot p % 2.
  std::atomic<std::uint64_t> posted;    ///< pieces that this rank published
  std::atomic<std::uint64_t> consumed;  ///< pieces of all ranks that this rank needs no more
  Call calls[2];

  WaitRecord wait;
};

/// Bytes on their way from one rank to another.
struct Ring {
  std::atomic<std::uint64_t> written, read;  ///< in all
};

struct Header {
  std::atomic<std::int32_t> ranks;   ///< set by the first
  std::atomic<std::int32_t> joined;  ///< ranks that are there
  std::atomic<std::int32_t> ready;   ///< 1: all are
  std::atomic<std::int32_t>
      error;  ///< a ncclResult_t that all ranks take over; the message is complete when it is set
  std::atomic<std::int32_t> error_claimed;
  char message[1024];
};

class Segment {
 public:
  /// Makes or opens the shared memory of that name; throws std::runtime_error.
  Segment(const std::string& name, int ranks);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  /// Takes the name away: nobody can open the segment any more.
  void unlink();

  const std::string& name() const { return name_; }
  std::uint64_t hash() const { return hash_; }
  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  RankArea& rank(int rank) const { return *reinterpret_cast<RankArea*>(base_ + rank_offset(rank)); }
  /// Where a rank publishes piece p of a collective; piece_bytes() bytes.
  std::byte* slot(int rank, std::uint64_t piece) const;
  std::size_t piece_bytes() const { return piece_bytes_; }
  Ring& ring(int from, int to) const;
  std::byte* ring_data(int from, int to) const;
  std::size_t ring_bytes() const { return ring_bytes_; }

 private:
  std::size_t rank_offset(int rank) const;
  std::size_t slots_offset() const { return rank_offset(ranks_); }
  std::size_t rings_offset() const;
  std::size_t total_bytes() const;

  std::string name_;
  std::uint64_t hash_;
  int ranks_, file_ = -1;
  std::size_t piece_bytes_, ring_bytes_;
  std::byte* base_ = nullptr;
};

/// A name for a new segment that no other has.
std::string new_segment_name();
/// Removes the segments of processes that ended before all ranks had come.
void remove_dead_segments();

/// When a process began, in the kernel's units; 0 when there is none with this pid, or one that has ended and was not waited for.
std::uint64_t process_start(int pid);

}  // namespace emulator::nccl
