#include "train/run/stop_signals.h"

#include <csignal>
#include <vector>

#include "core/log.h"

namespace nemocube {
namespace {

// SIGINT is watched as well as the signals that the recipe names: a person at a terminal loses nothing by
// Ctrl-C. mpirun passes SIGUSR1 on, and goes on itself: it asks for the same where mpirun would not let
// ranks end by themselves.
std::vector<int> watched_signals(const Recipe& recipe, const Launch& launch) {
  std::vector<int> signals = recipe.step_scheduler.preemption_signals;
  signals.push_back(SIGINT);
  if (launch.by_mpirun()) signals.push_back(SIGUSR1);
  return signals;
}

std::string first_signal_text(const Recipe& recipe) {
  return cat("stopping when this step is done",
             recipe.checkpoint.enabled ? " and saved" : "; checkpoint.enabled is false, so nothing is saved",
             "; a second signal stops at once");
}

}  // namespace

StopSignals::StopSignals(const Recipe& recipe, const RunRanks& ranks)
    : ranks_(ranks),
      watch_(watched_signals(recipe, launch_), ranks.first() ? first_signal_text(recipe) : "") {}

void StopSignals::announce() const {
  if (!launch_.stop_command.empty())
    log_info(launch_.stop_command,
             " ends this run with a checkpoint; SIGTERM or Ctrl-C to mpirun itself kills the ranks at once");
}

bool StopSignals::asked() {
  if (agreed_ == 0) agreed_ = static_cast<int>(ranks_.largest(watch_.received()));
  return agreed_ != 0;
}

Validation::Stop StopSignals::stop() {
  return {[this] { return asked(); }, [this] { return watch_.received() != 0; }};
}

void StopSignals::set_second_text(const std::string& text) {
  if (ranks_.first()) watch_.set_second_text(text);
}

}  // namespace nemocube
