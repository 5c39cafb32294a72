#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/cuda/graph.h"
#include "model/parameters.h"
#include "parallel/comm/communicator.h"

namespace nemocube {

/// Work of training steps that is queued again and again, by CUDA graphs.
class GraphCache {
 public:
  /// The ranks `all` call run() together and alike: either all of them launch a graph or none. `parameters`
  /// and `all` outlive this object.
  GraphCache(ParameterStore& parameters, Communicator& all) : parameters_(parameters), all_(all) {}

  /// Numbers that are parts of the work, such as its sizes.
  using Key = std::vector<double>;
  /// Runs `work`, which writes the same memory for the same key and the same set of existing gradients
  /// (GradNode). The first time the work runs directly, and makes lasting things: tables, loaded kernels,
  /// memory of libraries. The second time it is captured, and from then on the graph runs in its place. Work
  /// that one rank fails to capture twice runs directly every time on all ranks, and that rank warns once.
  /// `name`: "the update". `undo` is called while `work` throws in a capture: it releases everything that the
  /// work has made so far, and resets the host's state of the step.
  void run(const char* name, const Key& key, const std::function<void()>& work,
           const std::function<void()>& undo = {});
  /// This rank warns once that work has no graph, and why.
  void say_refused(const char* name, const std::string& reason);
  /// Kernels and products that graphs have run so far.
  std::int64_t launches_in_graphs() const { return launches_in_graphs_; }

 private:
  struct Entry {
    bool ran = false;
    int failures = 0;  // to capture it
    std::shared_ptr<cuda::Graph> graph;
    std::vector<bool> gradients;  // that are there after the work
  };
  std::vector<bool> gradients() const;  // that are there, of all parameters
  void set_gradients(const std::vector<bool>& there) const;
  void capture(const char* name, Entry& entry, const std::function<void()>& work,
               const std::function<void()>& undo);
  ParameterStore& parameters_;
  Communicator& all_;
  std::map<std::tuple<std::string, Key, std::vector<bool>>, Entry> entries_;
  std::set<std::string> said_;
  std::int64_t launches_in_graphs_ = 0;
};

}  // namespace nemocube
