#include "parallel/comm/world.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <set>
#include <string_view>
#include <utility>

#include "core/environment.h"
#include "core/error.h"
#include "core/profile.h"
#include "core/rng.h"
#include "parallel/comm/job/job_files.h"
#include "parallel/comm/job/rank_threads.h"
#include "parallel/comm/job/time_limit.h"
#include "parallel/comm/nccl/nccl_group.h"
#include "parallel/comm/together.h"

namespace nemocube {
namespace {

/// MPI while it runs. Stays where a failure ends the World, because peers may still read this rank's memory.
struct Running {
  std::unique_ptr<Transport> transport;
  std::shared_ptr<CommEngine> engine;
  int node = 0;
};
Running* process = nullptr;

/// What a rank tells the others of its machine.
struct HostOfRank {
  std::array<char, 64> node{};  // NEMOCUBE_NODE
  cpu_set_t cpus{};             // of its binding

  static HostOfRank here() {
    HostOfRank host;
    if (const char* name = environment_variable("NEMOCUBE_NODE"))
      std::ranges::copy(std::string_view(name).substr(0, host.node.size()), host.node.begin());
    ::sched_getaffinity(0, sizeof host.cpus, &host.cpus);
    return host;
  }
};

}  // namespace

template <class Fn>
auto World::in_time(const std::string& call, Fn&& fn) const {
  const TimeLimit limit(engine_->options.timeout_seconds, call);
  return fn();
}

World::World(const Launch& launch, const CommOptions& options)
    : uncaught_(std::uncaught_exceptions()), engine_(std::make_shared<CommEngine>()) {
  engine_->options = options;
  if (launch.size == 1) {
    if (launch.variable.empty()) {
      const std::string apart = started_apart([](KnownVariable v) { return environment_variable(v); });
      require(apart.empty(), apart);
    }
    communicator_ = self_communicator("world", 0);
    return;
  }
  static Zone zone("start/mpi");
  const ZoneTimer timer(zone);
  // The PMIx server of ORTE, which is Open MPI's mpirun up to version 4, refuses a rank that it has seen end.
  require(
      create_job_file(cat("started.", rank_of_job())) || !environment_variable("OMPI_MCA_orte_ess_num_procs"),
      "an earlier command under this mpirun has used MPI, and mpirun of Open MPI 4 starts MPI only once "
      "for each rank; give each command an mpirun of its own");
  process = in_time("MPI_Init", [&] { return new Running{mpi_transport(), engine_}; });
  transport_ = process->transport.get();
  communicator_ = std::make_unique<RankCommunicator>(
      "world", in_time("the making of group world", [&] { return transport_->split(0, launch.rank); }),
      engine_);
  require(size() == launch.size, launch.variable, " says that this job has ", launch.size,
          " ranks, but MPI knows ", size(), "; start it with the mpirun of the MPI that nemocube uses");
  find_neighbours(launch);
}

World::~World() {
  if (!transport_ || std::uncaught_exceptions() > uncaught_) return;
  engine_->queue.finish();
  node_group_ = nullptr;
  if (nccl_) {
    wait_for_collectives();
    static_cast<RankCommunicator&>(*communicator_).use_nccl(nullptr);
    nccl_ = nullptr;
    engine_->nccl = nullptr;
  }
  in_time("MPI_Finalize", [&] { transport_->finish(); });
  delete std::exchange(process, nullptr);
}

// Fills in node and local rank, and chooses the number of threads. Ranks with other commands are found by the
// way.
void World::find_neighbours(const Launch& launch) {
  std::unique_ptr<MessageGroup> host =
      in_time("the search for ranks of the same machine", [&] { return transport_->host(); });
  const std::vector<int> members = host->members();
  const auto self = static_cast<std::size_t>(host->rank());
  std::vector<HostOfRank> hosts(members.size(), HostOfRank::here());
  if (members.size() > 1) {
    RankCommunicator communicator("host", std::move(host), engine_);
    hosts = communicator.host_all_gather(hosts[self]);
  }
  std::vector<int> local;  // world ranks on this node
  for (std::size_t i = 0; i < members.size(); ++i)
    if (hosts[i].node == hosts[self].node) local.push_back(members[i]);
  local_size_ = static_cast<int>(local.size());
  local_rank_ = static_cast<int>(std::ranges::find(local, rank()) - local.begin());

  struct Rank {
    std::uint64_t command = 0;  // hash
    std::int64_t lowest = 0;    // rank of its node
  };
  const std::vector<Rank> ranks =
      communicator_->host_all_gather(Rank{hash_name(launch.command), local.front()});
  if (std::ranges::any_of(ranks, [&](const Rank& rank) { return rank.command != ranks[0].command; }))
    want_same_text(communicator_.get(), "the command line", launch.command);
  std::set<std::int64_t> nodes;
  for (const Rank& rank : ranks) nodes.insert(rank.lowest);
  nodes_ = static_cast<int>(nodes.size());
  node_ = static_cast<int>(std::distance(nodes.begin(), nodes.find(local.front())));
  process->node = node_;

  std::vector<cpu_set_t> bindings;
  for (const HostOfRank& other : hosts) bindings.push_back(other.cpus);
  if (!environment_variable("OMP_NUM_THREADS")) omp_set_num_threads(rank_threads(bindings, self));
}

std::unique_ptr<MessageGroup> World::split_messages(const std::string& name, int colour, int key) {
  std::unique_ptr<MessageGroup> group;
  engine_->queue.run(
      [&] {  // behind what was started: MPI may wait for other ranks here, which may wait for that
        const std::lock_guard lock(engine_->transport_mutex);
        group = in_time(cat("the making of group ", name), [&] { return transport_->split(colour, key); });
      });
  return group;
}

Communicator* World::node_group() {
  if (!transport_) return nullptr;
  if (nodes_ == 1) return communicator_.get();
  if (node_group_) return node_group_.get();
  auto group = split_messages("node", node_, rank());
  if (local_size_ > 1)
    node_group_ = std::make_unique<RankCommunicator>("node", std::move(group), engine_);
  else
    node_group_ = self_communicator("node", rank());
  return node_group_.get();
}

std::unique_ptr<Communicator> World::split(const std::string& name, int colour, int key) {
  if (!transport_) return colour < 0 ? nullptr : self_communicator(name, 0);
  std::unique_ptr<MessageGroup> group = split_messages(name, colour, key);
  std::shared_ptr<NcclGroup> nccl;
  if (nccl_) nccl = nccl_->split(name, colour, key);
  if (!group) return nullptr;
  if (group->members().size() == 1) return self_communicator(name, rank());
  auto communicator = std::make_unique<RankCommunicator>(name, std::move(group), engine_);
  communicator->use_nccl(std::move(nccl));
  return communicator;
}

std::unique_ptr<Communicator> World::background_group(const std::string& name, std::int64_t storage_bytes) {
  if (!transport_) return nullptr;
  auto group = std::make_unique<RankCommunicator>(name, split_messages(name, 0, rank()), engine_,
                                                  CallsFrom::background_thread);
  group->wait_for_storage_of(storage_bytes);
  return group;
}

std::unique_ptr<LateRanks> World::late_ranks() {
  if (!transport_) return nullptr;
  return std::make_unique<LateRanks>(split_messages("late ranks", 0, rank()), *engine_);
}

void World::use_nccl() {
  if (!transport_ || nccl_) return;
  together(communicator_.get(), [] {
    const std::string missing = nccl_missing();
    require(missing.empty(), missing);
  });
  nccl_ = NcclGroup::of_world(*communicator_, late_ranks(), engine_);
  static_cast<RankCommunicator&>(*communicator_).use_nccl(nccl_);
}

void World::wait_for_collectives() const {
  if (nccl_) engine_->nccl->wait_for_all();
}

bool World::running() { return process != nullptr; }
int World::node_of_process() { return process ? process->node : 0; }

void World::abort(int exit_code) noexcept {
  if (!process) return;
  process->engine->ending = true;  // whoever sends and receives stops, since MPI takes calls of one thread
  const std::unique_lock lock(process->engine->transport_mutex, std::chrono::seconds(1));
  process->transport->abort(exit_code);
}

}  // namespace nemocube
