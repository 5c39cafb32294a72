#pragma once
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "timeline/schedule.h"

namespace emulator::timeline {

/// Rates of the modelled machine: H100 SXM, eight of them a node. TIMELINE.md says where each comes from.
struct Rates {
  // A device, by the second.
  double dram = 3.35e12, l2 = 5.5e12;                ///< bytes
  double tensor_flops = 989e12, flops = 67e12;       ///< two a multiply-add
  double multiprocessors = 132, clock = 1.755e9;     ///< wavefronts: one a clock and multiprocessor
  double schedulers = 4;                             ///< instructions of warps a clock and multiprocessor
  double kernel_share = 0.65, product_share = 0.75;  ///< of these rates that is reached
  double kernel_seconds = 2e-6;                      ///< the least that a kernel or a copy takes
  double host_link = 50e9;                           ///< bytes a second from and to the host's memory

  // Links of a device, bytes a second in each direction.
  double devices_of_node = 8;
  double nvlink = 360e9, network = 45e9;
  double nvlink_seconds = 10e-6, network_seconds = 25e-6;  ///< of a transfer, whatever its bytes

  // What a call takes the host, seconds.
  double launch = 3.2e-6, product_call = 6.4e-6, exchange_call = 5e-6, copy_call = 1.2e-6;
  double event = 0.2e-6, timed_event = 0.8e-6, graph_call = 6e-6, memory_call = 0.3e-6;

  /// What is multiplied of operations whose "name [ranges]" contains a text: bytes (of DRAM, of copies, of transfers); and
  /// all else, blocks too. For estimates of larger sizes than those that run.
  struct Scale {
    double bytes = 1, operations = 1;
    std::string text = {};
  };
  std::vector<Scale> scales;
};

/// Reads lines of a name of Rates and a value, and lines `scale BYTES OPERATIONS TEXT`; "#" begins a comment. Throws
/// std::runtime_error that names the line.
void read_rates(std::istream& lines, Rates& rates);

/// The first that fits.
Rates::Scale scale_of(const Operation& operation, const Rates& rates);

/// What an operation needs of a device while nothing else runs there.
struct Need {
  double seconds = 0;
  double multiprocessors = 0, dram = 0;  ///< share of them that it uses meanwhile
};
/// Of a kernel the longest of: bytes over the rate of DRAM and of the L2; and, on the busiest multiprocessor, tensor cores,
/// multiply-adds, wavefronts of shared memory and instructions. Of b equally long blocks it has b / multiprocessors, rounded up.
Need need_of(const Load& load, const Rates::Scale& scale, const Rates& rates);

/// Seconds of the link of each rank that takes part, while nothing else uses it. `ranks_of_node`: how many of its ranks a node
/// holds. A ring over nodes uses the interfaces of all its devices of a node.
double link_seconds(const Transfer& transfer, const Rates::Scale& scale, int ranks_of_node,
                    const Rates& rates);

double host_seconds(HostStep::Kind kind, const Rates& rates);

}  // namespace emulator::timeline
