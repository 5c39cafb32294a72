#pragma once
#include <cstdint>
#include <vector>

#include "parallel/schedule/actions.h"

namespace nemocube {

/// Time units that actions take. All are above 0.
struct ActionCosts {
  double forward = 1, backward = 2, backward_input = 1, backward_weight = 1;
  std::vector<double> stages = {};  ///< factor of each stage; empty: 1 for all
};

struct TimeSpan {
  double start, end;
  bool operator==(const TimeSpan&) const = default;
};

/// When every action runs if each starts as soon as its rank is free and its input is there, and transfers
/// take no time.
struct Simulation {
  std::vector<std::vector<TimeSpan>> times;  ///< of schedule[rank][i], from 0
  double makespan = 0;                       ///< end of the last action
  std::vector<double> idle;        ///< bubble of each rank: the share of the makespan without action
  std::vector<std::int64_t> live;  ///< of each rank: the most Fs that no B or I has followed yet
};

/// F(s, m) waits for F(s - 1, m). B(s, m) and I(s, m) wait for F(s, m), and on all but the last stage for B
/// or I (s + 1, m). W(s, m) waits for I(s, m). A rank does its actions one at a time, in the order of the
/// list.
///
/// The simulation takes time in proportion to the number of actions. Its times are exact for integer costs,
/// and the same bits everywhere for other costs.
///
/// pre: costs above 0, as many stage factors as stages or none. Error as ranks_of_stages, and for a deadlock,
/// naming for each waiting rank the action that it waits for.
Simulation simulate(const Schedule& schedule, const ActionCosts& costs = {});

}  // namespace nemocube
