#include "train/device/placement.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <set>

#include "core/environment.h"
#include "core/error.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

/// The names in a folder, sorted; none where the folder does not exist.
std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

std::string first_line(const fs::path& file) {
  std::string line;
  std::ifstream in(file);
  std::getline(in, line);
  return line;
}

int number_in(const fs::path& file) {
  int number = -1;
  std::ifstream(file) >> number;
  return number;
}

/// "0-3,8" for 0, 1, 2, 3, 8.
std::string ranges_text(const std::set<int>& numbers) {
  std::string text;
  for (auto first = numbers.begin(); first != numbers.end();) {
    auto last = first;
    for (auto next = std::next(last); next != numbers.end() && *next == *last + 1; ++next) last = next;
    text += cat(text.empty() ? "" : ",", *first);
    if (last != first) text += cat("-", *last);
    first = std::next(last);
  }
  return text;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace

int numa_node_of(const std::string& pci, const fs::path& sys) {
  return number_in(sys / "bus/pci/devices" / pci / "numa_node");
}

OwnCpus own_cpus(const fs::path& sys) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {};
  std::set<int> cpus, nodes;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    cpus.insert(cpu);
    for (const std::string& name : entries(sys / "devices/system/cpu" / cat("cpu", cpu)))
      if (name.starts_with("node") && name.size() > 4 && std::isdigit(static_cast<unsigned char>(name[4])))
        nodes.insert(std::stoi(name.substr(4)));
  }
  return {ranges_text(cpus), {nodes.begin(), nodes.end()}};
}

std::string to_string(const OwnCpus& cpus) {
  std::vector<std::string> nodes;
  for (const int node : cpus.numa_nodes) nodes.push_back(cat(node));
  return cat(
      "CPUs ", cpus.list,
      nodes.empty() ? "" : cat(nodes.size() == 1 ? " of NUMA node " : " of NUMA nodes ", joined(nodes)));
}

std::string placement_problem(int device_node, const OwnCpus& cpus) {
  if (device_node < 0 || cpus.numa_nodes.empty() ||
      std::ranges::find(cpus.numa_nodes, device_node) != cpus.numa_nodes.end())
    return {};
  return cat("its device is of NUMA node ", device_node, " and none of its ", to_string(cpus),
             ": bind the rank to the CPUs beside its device (tools/launch/bind.sh)");
}

std::string network_text(const fs::path& sys) {
  std::vector<std::string> found;
  for (const std::string& name : entries(sys / "class/infiniband")) {
    const int node = number_in(sys / "class/infiniband" / name / "device/numa_node");
    found.push_back(node < 0 ? name : cat(name, " of NUMA node ", node));
  }
  if (found.empty())
    for (const std::string& name : entries(sys / "class/net"))
      if (name != "lo" && first_line(sys / "class/net" / name / "operstate") == "up") found.push_back(name);
  for (const KnownVariable variable : {KnownVariable("NCCL_IB_HCA"), KnownVariable("NCCL_SOCKET_IFNAME")})
    if (const char* value = environment_variable(variable)) found.push_back(cat(variable.name(), "=", value));
  return joined(found);
}

}  // namespace nemocube
