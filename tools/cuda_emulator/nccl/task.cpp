#include "nccl/task.h"

#include <algorithm>
#include <cstring>

#include "nccl/reduction.h"

namespace emulator::nccl {
namespace {

/// What goes before the data of a send.
struct MessageHeader {
  std::uint64_t count = 0;
  std::int32_t type = 0, unused = 0;
};

const char* short_name(Kind kind) {
  constexpr const char* names[] = {"AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter",
                                   "AlltoAll",  "Gather", "Scatter",   "Send",      "Recv"};
  return names[static_cast<int>(kind)];
}

std::string amount(std::uint64_t count, int type) { return std::to_string(count) + " " + type_name(type); }

}  // namespace

bool Request::has_root() const {
  return kind == Kind::reduce || kind == Kind::broadcast || kind == Kind::gather || kind == Kind::scatter;
}

bool Request::reduces() const {
  return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter;
}

const char* Request::name() const {
  constexpr const char* names[] = {"ncclAllReduce",     "ncclReduce",   "ncclBroadcast", "ncclAllGather",
                                   "ncclReduceScatter", "ncclAlltoAll", "ncclGather",    "ncclScatter",
                                   "ncclSend",          "ncclRecv"};
  return names[static_cast<int>(kind)];
}

std::size_t Request::send_bytes(int rank, int ranks) const {
  const std::size_t bytes = count * type_bytes(type), all = bytes * static_cast<std::size_t>(ranks);
  switch (kind) {
    case Kind::broadcast:
      return rank == root ? bytes : 0;
    case Kind::scatter:
      return rank == root ? all : 0;
    case Kind::reduce_scatter:
    case Kind::all_to_all:
      return all;
    case Kind::receive:
      return 0;
    default:
      return bytes;
  }
}

std::size_t Request::receive_bytes(int rank, int ranks) const {
  const std::size_t bytes = count * type_bytes(type), all = bytes * static_cast<std::size_t>(ranks);
  switch (kind) {
    case Kind::reduce:
      return rank == root ? bytes : 0;
    case Kind::gather:
      return rank == root ? all : 0;
    case Kind::all_gather:
    case Kind::all_to_all:
      return all;
    case Kind::send:
      return 0;
    default:
      return bytes;
  }
}

std::string describe(const Request& request) {
  std::string text = std::string(short_name(request.kind)) + " of " + amount(request.count, request.type);
  if (request.reduces()) text += std::string(" (") + operation_name(request.operation) + ")";
  if (request.has_root()) text += ", root " + std::to_string(request.root);
  if (request.kind == Kind::send) text += " to rank " + std::to_string(request.root);
  if (request.kind == Kind::receive) text += " from rank " + std::to_string(request.root);
  return text;
}

std::string describe(const Call& call) {
  Request request{static_cast<Kind>(call.kind)};
  request.count = call.count;
  request.type = call.type;
  request.operation = call.operation;
  request.root = call.root;
  return describe(request);
}

Collective::Collective(Communicator& communicator, const Request& request, const void* send, void* receive)
    : communicator_(communicator),
      request_(request),
      send_(static_cast<const std::byte*>(send)),
      receive_(static_cast<std::byte*>(receive)),
      first_(communicator.pieces),
      bytes_(request.count * type_bytes(request.type)) {
  const int publisher = request.has_root() ? request.root : communicator.rank();
  extent_ = request.send_bytes(publisher, communicator.ranks());
  const std::size_t piece = communicator.segment().piece_bytes();
  pieces_ = std::max<std::uint64_t>(1, (extent_ + piece - 1) / piece);
  call_.number = ++communicator.calls;
  call_.kind = static_cast<std::int32_t>(request.kind);
  call_.count = request.count;
  call_.type = request.type;
  call_.operation = request.reduces() ? request.operation : 0;
  call_.root = request.has_root() ? request.root : 0;
  call_.scalar = request.factor;
}

Progress Collective::advance(std::vector<int>& waits_for) {
  Progress progress;
  for (;;) {
    std::vector<int> takers, publishers;
    const bool published = publish(takers), taken = take(publishers);
    // What keeps this rank: it cannot take a piece before it has published that piece itself, for which others must free its
    // slot. Of pieces that it has published, the next is missing from some ranks; its own next slot becomes free after that.
    waits_for = published_ == taken_ ? takers : publishers;
    progress.moved |= published || taken;
    progress.done = taken_ == pieces_;
    if (progress.done) communicator_.pieces = first_ + pieces_;
    if (progress.done || (!published && !taken)) return progress;
  }
}

/// Puts the next piece into this rank's slot when all ranks have taken what lies there. Adds those that have not.
bool Collective::publish(std::vector<int>& waits_for) {
  if (published_ == pieces_) return false;
  const std::uint64_t piece = first_ + published_;
  bool free = true;
  for (int r = 0; r < communicator_.ranks() && piece >= 2; ++r) {
    if (communicator_.area(r).consumed >= piece - 1) continue;
    free = false;
    if (r != communicator_.rank()) waits_for.push_back(r);
  }
  if (!free) return false;
  const Segment& segment = communicator_.segment();
  const std::size_t begin = published_ * segment.piece_bytes();
  const std::size_t mine = request_.send_bytes(communicator_.rank(), communicator_.ranks());
  if (begin < mine) {
    std::memcpy(segment.slot(communicator_.rank(), piece), send_ + begin,
                std::min(segment.piece_bytes(), mine - begin));
  }
  communicator_.mine().calls[piece % 2] = call_;
  communicator_.mine().posted = piece + 1;
  ++published_;
  return true;
}

/// Reads the next piece of all ranks when all have published it. Adds those that have not.
bool Collective::take(std::vector<int>& waits_for) {
  const std::uint64_t piece = first_ + taken_;
  bool there = true;
  for (int r = 0; r < communicator_.ranks(); ++r) {
    if (communicator_.area(r).posted > piece) continue;
    there = false;
    if (r != communicator_.rank()) waits_for.push_back(r);
  }
  if (!there) return false;
  compare(piece);
  const std::size_t begin = taken_ * communicator_.segment().piece_bytes();
  if (begin < extent_ && request_.receive_bytes(communicator_.rank(), communicator_.ranks()) != 0) {
    read_piece(piece, begin, std::min(communicator_.segment().piece_bytes(), extent_ - begin));
  }
  communicator_.mine().consumed = piece + 1;
  ++taken_;
  return true;
}

void Collective::compare(std::uint64_t piece) const {
  for (int r = 0; r < communicator_.ranks(); ++r) {
    const Call& other = communicator_.area(r).calls[piece % 2];
    if (other.number == call_.number && other.kind == call_.kind && other.count == call_.count &&
        other.type == call_.type && other.operation == call_.operation && other.root == call_.root) {
      continue;
    }
    throw Failure{ncclInvalidUsage, "the ranks of a communicator differ: rank " +
                                        std::to_string(communicator_.rank()) + " does " + describe(call_) +
                                        " as its collective " + std::to_string(call_.number) + ", rank " +
                                        std::to_string(r) + " does " + describe(other) +
                                        " as its collective " + std::to_string(other.number)};
  }
}

/// Bytes [begin, begin + size) of what the ranks publish: takes this rank's share.
void Collective::read_piece(std::uint64_t piece, std::size_t begin, std::size_t size) const {
  const Segment& segment = communicator_.segment();
  const int ranks = communicator_.ranks();
  const bool own_share = request_.kind == Kind::reduce_scatter || request_.kind == Kind::all_to_all ||
                         request_.kind == Kind::scatter;
  const std::size_t share = own_share ? static_cast<std::size_t>(communicator_.rank()) * bytes_ : 0;
  const std::size_t from = std::max(begin, share), to = std::min(begin + size, share + bytes_);
  if (from >= to) return;
  if (request_.reduces()) {
    std::vector<const std::byte*> inputs;
    std::vector<std::uint64_t> factors;
    for (int r = 0; r < ranks; ++r) {
      inputs.push_back(segment.slot(r, piece) + (from - begin));
      factors.push_back(communicator_.area(r).calls[piece % 2].scalar);
    }
    reduce(request_.type, request_.operation, inputs, factors, receive_ + (from - share),
           (to - from) / type_bytes(request_.type));
    return;
  }
  const bool from_root = request_.kind == Kind::broadcast || request_.kind == Kind::scatter;
  for (int r = 0; r < ranks; ++r) {
    if (from_root && r != request_.root) continue;
    const std::size_t place = from_root ? 0 : static_cast<std::size_t>(r) * bytes_;
    std::memcpy(receive_ + place + (from - share), segment.slot(r, piece) + (from - begin), to - from);
  }
}

PointToPoint::PointToPoint(Communicator& communicator, const Request& request, const void* send,
                           void* receive)
    : communicator_(communicator),
      request_(request),
      from_(static_cast<const std::byte*>(send)),
      to_(static_cast<std::byte*>(receive)),
      bytes_(request.count * type_bytes(request.type)) {}

Progress PointToPoint::advance(std::vector<int>& waits_for) {
  return request_.kind == Kind::send ? send(waits_for) : receive(waits_for);
}

namespace {

/// Copies between a ring, whose end continues at its beginning, and plain memory.
void into_ring(std::byte* ring, std::size_t ring_bytes, std::uint64_t at, const void* data,
               std::size_t size) {
  const std::size_t place = at % ring_bytes, first = std::min(size, ring_bytes - place);
  std::memcpy(ring + place, data, first);
  std::memcpy(ring, static_cast<const std::byte*>(data) + first, size - first);
}
void out_of_ring(const std::byte* ring, std::size_t ring_bytes, std::uint64_t at, void* data,
                 std::size_t size) {
  const std::size_t place = at % ring_bytes, first = std::min(size, ring_bytes - place);
  std::memcpy(data, ring + place, first);
  std::memcpy(static_cast<std::byte*>(data) + first, ring, size - first);
}

}  // namespace

/// A send is done when the receiver has taken all of it.
Progress PointToPoint::send(std::vector<int>& waits_for) {
  const Segment& segment = communicator_.segment();
  Ring& ring = segment.ring(communicator_.rank(), request_.root);
  std::byte* const data = segment.ring_data(communicator_.rank(), request_.root);
  const std::size_t room_in_all = segment.ring_bytes();
  Progress progress;
  for (;;) {
    const std::uint64_t written = ring.written;
    const std::size_t room = room_in_all - (written - ring.read);
    if (!header_moved_ && room >= sizeof(MessageHeader)) {
      const MessageHeader header{request_.count, request_.type, 0};
      into_ring(data, room_in_all, written, &header, sizeof header);
      end_ = written + sizeof header + bytes_;
      ring.written = written + sizeof header;
      header_moved_ = progress.moved = true;
      continue;
    }
    const std::size_t size = header_moved_ ? std::min(room, bytes_ - moved_) : 0;
    if (size == 0) break;
    into_ring(data, room_in_all, written, from_ + moved_, size);
    ring.written = written + size;
    moved_ += size;
    progress.moved = true;
  }
  progress.done = header_moved_ && moved_ == bytes_ && ring.read >= end_;
  if (!progress.done) waits_for.push_back(request_.root);
  return progress;
}

Progress PointToPoint::receive(std::vector<int>& waits_for) {
  const Segment& segment = communicator_.segment();
  Ring& ring = segment.ring(request_.root, communicator_.rank());
  const std::byte* const data = segment.ring_data(request_.root, communicator_.rank());
  Progress progress;
  for (;;) {
    const std::uint64_t read = ring.read;
    const std::size_t there = ring.written - read;
    if (!header_moved_ && there >= sizeof(MessageHeader)) {
      MessageHeader header;
      out_of_ring(data, segment.ring_bytes(), read, &header, sizeof header);
      if (header.count != request_.count || header.type != request_.type) {
        throw Failure{ncclInvalidUsage, "send and receive differ: rank " + std::to_string(request_.root) +
                                            " sends " + amount(header.count, header.type) + " to rank " +
                                            std::to_string(communicator_.rank()) + ", which receives " +
                                            amount(request_.count, request_.type)};
      }
      ring.read = read + sizeof header;
      header_moved_ = progress.moved = true;
      continue;
    }
    const std::size_t size = header_moved_ ? std::min(there, bytes_ - moved_) : 0;
    if (size == 0) break;
    out_of_ring(data, segment.ring_bytes(), read, to_ + moved_, size);
    ring.read = read + size;
    moved_ += size;
    progress.moved = true;
  }
  progress.done = header_moved_ && moved_ == bytes_;
  if (!progress.done) waits_for.push_back(request_.root);
  return progress;
}

}  // namespace emulator::nccl
