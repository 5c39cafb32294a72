#include "timeline/rates.h"

#include <algorithm>
#include <cmath>
#include <istream>
#include <sstream>
#include <stdexcept>

namespace emulator::timeline {
namespace {

struct Name {
  const char* text;
  double Rates::*value;
};
constexpr Name names[] = {{"dram", &Rates::dram},
                          {"l2", &Rates::l2},
                          {"tensor_flops", &Rates::tensor_flops},
                          {"flops", &Rates::flops},
                          {"multiprocessors", &Rates::multiprocessors},
                          {"clock", &Rates::clock},
                          {"schedulers", &Rates::schedulers},
                          {"kernel_share", &Rates::kernel_share},
                          {"product_share", &Rates::product_share},
                          {"kernel_seconds", &Rates::kernel_seconds},
                          {"host_link", &Rates::host_link},
                          {"devices_of_node", &Rates::devices_of_node},
                          {"nvlink", &Rates::nvlink},
                          {"network", &Rates::network},
                          {"nvlink_seconds", &Rates::nvlink_seconds},
                          {"network_seconds", &Rates::network_seconds},
                          {"launch", &Rates::launch},
                          {"product_call", &Rates::product_call},
                          {"exchange_call", &Rates::exchange_call},
                          {"copy_call", &Rates::copy_call},
                          {"event", &Rates::event},
                          {"timed_event", &Rates::timed_event},
                          {"graph_call", &Rates::graph_call},
                          {"memory_call", &Rates::memory_call}};

/// Names of durations may be zero; a rate may not.
bool is_duration(double Rates::*value) {
  constexpr double Rates::*durations[] = {
      &Rates::kernel_seconds, &Rates::nvlink_seconds, &Rates::network_seconds, &Rates::launch,
      &Rates::product_call,   &Rates::exchange_call,  &Rates::copy_call,       &Rates::event,
      &Rates::timed_event,    &Rates::graph_call,     &Rates::memory_call};
  return std::find(std::begin(durations), std::end(durations), value) != std::end(durations);
}

}  // namespace

void read_rates(std::istream& lines, Rates& rates) {
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const auto fail = [&](const std::string& why) {
      throw std::runtime_error("line " + std::to_string(number) + ": " + why);
    };
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name;
    if (!(words >> name)) continue;
    double value = 0;
    if (!(words >> value) || !std::isfinite(value) || value < 0)
      fail("want a number that is not negative behind '" + name + "'");
    if (name == "scale") {
      Rates::Scale scale{value};
      if (!(words >> scale.operations) || !std::isfinite(scale.operations) || scale.operations < 0 ||
          !std::getline(words >> std::ws, scale.text))
        fail("want 'scale BYTES OPERATIONS TEXT'");
      scale.text.erase(scale.text.find_last_not_of(" \t\r") + 1);
      rates.scales.push_back(std::move(scale));
      continue;
    }
    const auto* const known =
        std::find_if(std::begin(names), std::end(names), [&](const Name& n) { return name == n.text; });
    if (known == std::end(names)) {
      std::string all;
      for (const Name& n : names) all += std::string(" ") + n.text;
      fail("there is no rate '" + name + "'; there are scale" + all);
    }
    if (value == 0 && !is_duration(known->value)) fail("'" + name + "' must not be 0");
    std::string more;
    if (words >> more) fail("'" + more + "' behind the value of '" + name + "'");
    rates.*known->value = value;
  }
}

Rates::Scale scale_of(const Operation& operation, const Rates& rates) {
  if (rates.scales.empty()) return {};
  const std::string text = operation.name + " [" + operation.range + "]";
  for (const Rates::Scale& scale : rates.scales)
    if (text.find(scale.text) != std::string::npos) return scale;
  return {};
}

Need need_of(const Load& load, const Rates::Scale& scale, const Rates& r) {
  using Kind = Load::Kind;
  const double bytes = scale.bytes * load.bytes, dram = bytes / r.dram;
  switch (load.kind) {
    case Kind::point:
    case Kind::host:
    case Kind::exchange:
      return {};
    case Kind::upload:
    case Kind::download: {
      const double seconds = std::max(r.kernel_seconds, bytes / r.host_link);
      return {seconds, 0, dram / seconds};
    }
    case Kind::local: {
      const double seconds = std::max(r.kernel_seconds, dram / r.kernel_share);
      return {seconds, 0, std::min(1.0, dram / r.kernel_share / seconds)};
    }
    case Kind::product: {
      const double flops = 2 * scale.operations / r.product_share *
                           (load.tensor_multiply_adds / r.tensor_flops + load.multiply_adds / r.flops);
      const double seconds = std::max({r.kernel_seconds, dram, flops});
      return {seconds, 1, dram / seconds};
    }
    case Kind::kernel:
      break;
  }
  const double blocks = std::max(1.0, std::round(scale.operations * load.blocks));
  // Of the work of all blocks, what the busiest multiprocessor does, as if all had as much.
  const double busiest = std::ceil(blocks / r.multiprocessors) * r.multiprocessors / blocks;
  const double cycles = r.multiprocessors * r.clock;
  const double of_blocks =
      scale.operations *
      std::max({2 * load.tensor_multiply_adds / r.tensor_flops, 2 * load.multiply_adds / r.flops,
                load.wavefronts / cycles, load.instructions / (r.schedulers * cycles)});
  const double work =
      std::max({dram, scale.operations * load.l2_bytes / r.l2, busiest * of_blocks}) / r.kernel_share;
  const double seconds = std::max(r.kernel_seconds, work);
  return {seconds, std::min(1.0, blocks / (load.resident * r.multiprocessors)),
          std::min(1.0, dram / r.kernel_share / seconds)};
}

double link_seconds(const Transfer& t, const Rates::Scale& scale, int ranks_of_node, const Rates& r) {
  using Kind = Transfer::Kind;
  const double ranks = t.ranks, others = ranks - 1, bytes = scale.bytes * t.bytes;
  const bool one_node = ranks_of_node >= (t.kind == Kind::message ? 2 : t.ranks);
  const double ring = one_node ? r.nvlink : std::min(r.nvlink, ranks_of_node * r.network);
  switch (t.kind) {
    case Kind::all_reduce:
      return ranks == 1 ? 0 : 2 * others / ranks * bytes / ring;
    case Kind::reduce:
    case Kind::broadcast:
      return ranks == 1 ? 0 : bytes / ring;
    case Kind::all_gather:
    case Kind::reduce_scatter:
      return others * bytes / ring;
    case Kind::gather:
    case Kind::scatter:
    case Kind::all_to_all: {
      if (one_node) return others * bytes / r.nvlink;
      const double inside = ranks_of_node - 1;
      return std::max((others - inside) * bytes / r.network, inside * bytes / r.nvlink);
    }
    case Kind::message:
      return t.source == t.target ? 0 : bytes / (one_node ? r.nvlink : r.network);
  }
  return 0;
}

double host_seconds(HostStep::Kind kind, const Rates& r) {
  using Kind = HostStep::Kind;
  switch (kind) {
    case Kind::launch:
      return r.launch;
    case Kind::product:
      return r.product_call;
    case Kind::exchange:
      return r.exchange_call;
    case Kind::copy:
      return r.copy_call;
    case Kind::event:
      return r.event;
    case Kind::timed_event:
      return r.timed_event;
    case Kind::graph:
      return r.graph_call;
    case Kind::memory:
      return r.memory_call;
    case Kind::wait:
      return 0;
  }
  return 0;
}

}  // namespace emulator::timeline
