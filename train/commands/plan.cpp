#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>

#include "core/log.h"
#include "parallel/schedule/csv.h"
#include "parallel/schedule/schedules.h"
#include "parallel/schedule/simulate.h"
#include "train/commands/commands.h"

namespace nemocube {
namespace {

struct PlanArguments {
  std::string schedule;
  std::int64_t pp = 0, microbatches = 0;
  std::optional<std::int64_t> chunks;
};

void print_schedule(const PlanArguments& o) {
  const ScheduleKind kind = parse_schedule_kind(o.schedule);
  const std::int64_t chunks = o.chunks.value_or(has_one_chunk(kind) ? 1 : 2);
  const Schedule schedule = make_schedule(kind, o.pp, chunks, o.microbatches);
  write_schedule_csv(std::cout, schedule);
  const Simulation simulation = simulate(schedule);
  const double idle =
      std::accumulate(simulation.idle.begin(), simulation.idle.end(), 0.0) / static_cast<double>(o.pp);
  log_info(name_of(kind), " on ", counted(o.pp, "rank"), " of ", counted(chunks, "stage"), ", ",
           counted(o.microbatches, "microbatch", "microbatches"), ": ", simulation.makespan,
           " time units (F 1, B 2, I 1, W 1), ranks idle for ", std::round(1000 * idle) / 10,
           " % of them (bubble); at most ", *std::ranges::max_element(simulation.live),
           " live activations on one rank");
}

}  // namespace

void add_plan_command(Command& app) {
  auto o = std::make_shared<PlanArguments>();
  Command* command =
      app.add_subcommand("plan", "The order of actions of every pipeline rank; starts no ranks");
  command
      ->add_option("--schedule", o->schedule,
                   "gpipe, 1f1b, interleaved1f1b, interleavedzerobubble or zbv, or PyTorch's class name")
      ->required();
  command->add_option("--pp", o->pp, "pipeline ranks")->required();
  command->add_option("--chunks", o->chunks,
                      "stages of each rank; default: 1 with gpipe and 1f1b, 2 with the others");
  command->add_option("--microbatches", o->microbatches, "microbatches of a step")->required();
  command->footer(
      "Prints a row for each rank in the notation of PyTorch's schedule files: 4B1 is stage 4, backward "
      "pass,\n"
      "microbatch 1. F is the forward pass, B the whole backward pass, I its input gradient and W its "
      "weight\n"
      "gradients. A column is a time step, an empty cell an idle one. Duration, bubble and live activations\n"
      "(forward passes whose B or I is still to come) go to standard error.");
  command->callback([o] { print_schedule(*o); });
}

}  // namespace nemocube
