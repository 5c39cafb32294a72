#include <mpi.h>

#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "parallel/comm/mpi/transport.h"

namespace nemocube {
namespace {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  fail(call, ": ", text);
}

class MpiMessages;

/// Messages that have arrived in a group and receives that wait for one. A message is matched before it is
/// received: Open MPI 4.1 writes beyond the memory of a posted receive when a longer message comes through
/// shared memory.
class Inbox {
 public:
  explicit Inbox(MPI_Comm comm) : comm_(comm) {
    int size = 0;
    check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
    peers_.resize(static_cast<std::size_t>(size));
  }

  struct Receive {
    MpiMessages* batch;
    std::size_t index;  // in the batch
    void* data;
    std::int64_t bytes;
    int tag;
  };
  void want(int peer, const Receive& receive) {
    peers_[static_cast<std::size_t>(peer)].wanted.push_back(receive);
    ++wanted_;
    meet(peer);
  }
  void forget(const MpiMessages* batch) {
    for (Peer& peer : peers_)
      wanted_ -= std::erase_if(peer.wanted, [&](const Receive& r) { return r.batch == batch; });
  }
  /// Looks for messages while one is wanted.
  void look() {
    while (wanted_ > 0) {
      Envelope e;
      MPI_Status status;
      int found = 0;
      check(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &found, &e.message, &status), "MPI_Improbe");
      if (!found) return;
      check(MPI_Get_count(&status, MPI_BYTE, &e.bytes), "MPI_Get_count");
      e.tag = status.MPI_TAG;
      peers_[static_cast<std::size_t>(status.MPI_SOURCE)].arrived.push_back(e);
      meet(status.MPI_SOURCE);
    }
  }

 private:
  struct Envelope {
    MPI_Message message = MPI_MESSAGE_NULL;
    int tag = 0, bytes = 0;
  };
  struct Peer {
    std::deque<Receive> wanted;
    std::deque<Envelope> arrived;
  };
  void meet(int peer);

  MPI_Comm comm_;
  std::vector<Peer> peers_;
  std::size_t wanted_ = 0;  // of all peers
};

class MpiMessages final : public Messages {
 public:
  MpiMessages(MPI_Comm comm, std::shared_ptr<Inbox> inbox) : comm_(comm), inbox_(std::move(inbox)) {}
  MpiMessages(const MpiMessages&) = delete;
  MpiMessages& operator=(const MpiMessages&) = delete;
  ~MpiMessages() override {
    for (MPI_Request& request : requests_)
      if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
    inbox_->forget(this);
  }

  void send(const void* data, std::int64_t bytes, int to, int tag) override {
    add({to, bytes, false});
    check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, comm_, &requests_.back()), "MPI_Isend");
  }
  void receive(void* data, std::int64_t bytes, int from, int tag) override {
    add({from, bytes, true});
    inbox_->want(from, {this, requests_.size() - 1, data, bytes, tag});
  }
  /// Begins to receive message `index`.
  void arrives(std::size_t index, void* data, int bytes, MPI_Message& message) {
    check(MPI_Imrecv(data, bytes, MPI_BYTE, &message, &requests_[index]), "MPI_Imrecv");
  }

  int poll() override {
    inbox_->look();
    int done = 0;
    indices_.resize(requests_.size());
    statuses_.resize(requests_.size());
    const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &done,
                                  indices_.data(), statuses_.data());
    if (code != MPI_ERR_IN_STATUS) check(code, "MPI_Testsome");
    if (done == MPI_UNDEFINED) return 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(done); ++i) {
      Message& message = messages_[static_cast<std::size_t>(indices_[i])];
      message.done = true;
      if (code == MPI_ERR_IN_STATUS && statuses_[i].MPI_ERROR != MPI_ERR_PENDING)
        check(statuses_[i].MPI_ERROR, message.incoming ? "MPI_Imrecv" : "MPI_Isend");
    }
    return done;
  }

 private:
  void add(const Message& message) {
    messages_.push_back(message);
    requests_.push_back(MPI_REQUEST_NULL);
  }

  MPI_Comm comm_;
  std::shared_ptr<Inbox> inbox_;
  std::vector<MPI_Request> requests_;  // null for a message that is done or has not arrived
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

void Inbox::meet(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  while (!peer.wanted.empty() && !peer.arrived.empty()) {
    const Receive receive = peer.wanted.front();
    Envelope& e = peer.arrived.front();
    if (e.bytes != receive.bytes || e.tag != receive.tag) throw WrongMessage{rank, receive.bytes, e.bytes};
    receive.batch->arrives(receive.index, receive.data, e.bytes, e.message);
    peer.wanted.pop_front();
    peer.arrived.pop_front();
    --wanted_;
  }
}

// Groups of MPI live as long as the job: freeing one would be another call that all its ranks make together.
class MpiGroup final : public MessageGroup {
 public:
  explicit MpiGroup(MPI_Comm comm) : comm_(comm), inbox_(std::make_shared<Inbox>(comm)) {
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  std::unique_ptr<Messages> messages() const override { return std::make_unique<MpiMessages>(comm_, inbox_); }
  int rank() const override {
    int rank = 0;
    MPI_Comm_rank(comm_, &rank);
    return rank;
  }
  std::vector<int> members() const override {
    int size = 0;
    MPI_Comm_size(comm_, &size);
    std::vector<int> ranks(static_cast<std::size_t>(size)), world(ranks.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    MPI_Group group = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
    MPI_Comm_group(comm_, &group);
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    check(MPI_Group_translate_ranks(group, size, ranks.data(), all, world.data()),
          "MPI_Group_translate_ranks");
    MPI_Group_free(&group);
    MPI_Group_free(&all);
    return world;
  }

 private:
  MPI_Comm comm_;
  std::shared_ptr<Inbox> inbox_;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport() {
    int provided = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    require(provided >= MPI_THREAD_SERIALIZED,
            "this MPI was built without support for threads: want MPI_THREAD_SERIALIZED");
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }

  std::unique_ptr<MessageGroup> split(int colour, int key) override {
    MPI_Comm comm = MPI_COMM_NULL;
    check(MPI_Comm_split(MPI_COMM_WORLD, colour < 0 ? MPI_UNDEFINED : colour, key, &comm), "MPI_Comm_split");
    return comm == MPI_COMM_NULL ? nullptr : std::make_unique<MpiGroup>(comm);
  }
  std::unique_ptr<MessageGroup> host() override {
    MPI_Comm comm = MPI_COMM_NULL;
    check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &comm),
          "MPI_Comm_split_type");
    return std::make_unique<MpiGroup>(comm);
  }
  std::string library() const override {
    std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    text.resize(static_cast<std::size_t>(length));
    return text.substr(0, text.find(','));
  }
  void finish() override { check(MPI_Finalize(), "MPI_Finalize"); }
  void abort(int exit_code) noexcept override { MPI_Abort(MPI_COMM_WORLD, exit_code); }
};

}  // namespace

extern "C" Transport* nemocube_start_mpi() { return new MpiTransport; }

}  // namespace nemocube
