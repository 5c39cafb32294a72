#include "train/step/graph_cache.h"

#include <exception>
#include <utility>

#include "core/log.h"
#include "core/memory_limit.h"
#include "core/profile.h"

namespace nemocube {
namespace {

// Each holds what CUDA keeps of every launch. A run has about four: three kinds of microbatches, and the
// update.
constexpr std::size_t most_entries = 16;
// Work of others may have taken the place of a table that the first run made; it is made again when the work
// runs as it is.
constexpr int most_failures = 2;

/// Calls a function if an exception leaves the scope.
class OnError {
 public:
  explicit OnError(const std::function<void()>& call) : call_(call) {}
  ~OnError() {
    if (call_ && std::uncaught_exceptions() > before_) call_();
  }
  OnError(const OnError&) = delete;
  OnError& operator=(const OnError&) = delete;

 private:
  const std::function<void()>& call_;
  int before_ = std::uncaught_exceptions();
};

}  // namespace

std::vector<bool> GraphCache::gradients() const {
  std::vector<bool> there;
  for (const Parameter& p : parameters_.all()) there.push_back(p.wants_grad() && p.node->filled());
  return there;
}

void GraphCache::set_gradients(const std::vector<bool>& there) const {
  std::size_t i = 0;
  for (const Parameter& p : parameters_.all()) {
    if (there[i++])
      p.node->into();
    else if (p.node)
      p.node->clear();
  }
}

void GraphCache::say_refused(const char* name, const std::string& reason) {
  if (said_.insert(name + reason).second) log_warning("cuda_graphs: no graph of ", name, ": ", reason);
}

void GraphCache::capture(const char* name, Entry& entry, const std::function<void()>& work,
                         const std::function<void()>& undo) {
  const std::vector<bool> before = gradients();
  std::string reason;
  try {
    entry.graph = cuda::capture_graph([&] {
      const OnError undone(undo);
      work();
    });
    entry.gradients = gradients();
  } catch (const Error& e) {
    reason = e.what();
  }
  set_gradients(before);  // nothing has run
  const std::int64_t ranks = all_.size(), rank = all_.rank();
  const std::int64_t first_without = all_.host_all_reduce(reason.empty() ? ranks : rank, Reduction::min);
  if (first_without == ranks) {
    log_info("cuda_graphs: ", name, ": 1 launch in the place of ", entry.graph->launches(), "; tensors of ",
             bytes_text(entry.graph->bytes()), " at most");
    return;
  }
  entry.graph = nullptr;
  if (++entry.failures == most_failures && rank == first_without) say_refused(name, reason);
}

void GraphCache::run(const char* name, const Key& key, const std::function<void()>& work,
                     const std::function<void()>& undo) {
  const auto found = entries_.find({name, key, gradients()});
  if (found == entries_.end() && entries_.size() >= most_entries) {
    if (all_.rank() == 0) say_refused(name, cat("it has more than ", most_entries, " forms"));
    return work();
  }
  Entry& entry = found != entries_.end() ? found->second : entries_[{name, key, gradients()}];
  if (std::exchange(entry.ran, true) && !entry.graph && entry.failures < most_failures)
    capture(name, entry, work, undo);
  if (!entry.graph) return work();
  static Zone zone("step/cuda graph");
  const ZoneTimer timer(zone);
  entry.graph->launch();
  launches_in_graphs_ += entry.graph->launches();
  set_gradients(entry.gradients);
}

}  // namespace nemocube
