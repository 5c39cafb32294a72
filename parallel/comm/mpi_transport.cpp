#include <mpi.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "core/error.h"
#include "parallel/comm/transport.h"

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

class MpiMessages final : public Messages {
 public:
  explicit MpiMessages(MPI_Comm comm) : comm_(comm) {}
  MpiMessages(const MpiMessages&) = delete;
  MpiMessages& operator=(const MpiMessages&) = delete;
  ~MpiMessages() override {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      if (messages_[i].incoming) MPI_Cancel(&requests_[i]);
      MPI_Request_free(&requests_[i]);
    }
  }

  void send(const void* data, std::int64_t bytes, int to, int tag) override {
    check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, comm_, add({to, bytes, false})),
          "MPI_Isend");
  }
  void receive(void* data, std::int64_t bytes, int from, int tag) override {
    check(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, comm_, add({from, bytes, true})),
          "MPI_Irecv");
  }

  int poll() override {
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
      if (code == MPI_ERR_IN_STATUS) check_status(message, statuses_[i].MPI_ERROR);
      if (!message.incoming) continue;
      int bytes = 0;
      check(MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes), "MPI_Get_count");
      require(bytes == message.bytes, "rank ", message.peer, " of the group sends ", bytes,
              " bytes where this rank wants ", message.bytes);
    }
    return done;
  }

 private:
  MPI_Request* add(const Message& message) {
    messages_.push_back(message);
    return &requests_.emplace_back(MPI_REQUEST_NULL);
  }
  static void check_status(const Message& message, int code) {
    if (code == MPI_SUCCESS || code == MPI_ERR_PENDING) return;
    int kind = 0;
    MPI_Error_class(code, &kind);
    require(kind != MPI_ERR_TRUNCATE, "rank ", message.peer, " of the group sends more than the ",
            message.bytes, " bytes that this rank wants");
    check(code, message.incoming ? "MPI_Irecv" : "MPI_Isend");
  }

  MPI_Comm comm_;
  std::vector<MPI_Request> requests_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

// Groups of MPI live as long as the job: freeing one would be another call that all its ranks make together.
class MpiGroup final : public MessageGroup {
 public:
  explicit MpiGroup(MPI_Comm comm) : comm_(comm) {
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  std::unique_ptr<Messages> messages() const override { return std::make_unique<MpiMessages>(comm_); }
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
