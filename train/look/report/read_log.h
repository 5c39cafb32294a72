#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/look/report/thinning.h"

/// Logs of a run (docs/logs.md) in bounded memory, whatever their length. Damaged lines, such
/// as a last one that was cut off, are left out and counted. Fields that a line lacks, or
/// that are no finite numbers, are left out.
namespace nemocube::run_report {

/// A field over the steps.
struct Curve {
  ThinnedPoints points;
  RunMeans means;
  double sum = 0;
  double mean() const { return sum / static_cast<double>(points.count()); }
  void add(double step, double value);
  bool empty() const { return points.count() == 0; }
};

/// The first line of a start of the program.
struct ProgramStart {
  double step = 0;
  std::string timestamp, version, layout;
};

/// The tokens of the experts of each MoE block.
struct ExpertLog {
  RunMeans imbalance;                       ///< a value for each block
  std::vector<std::vector<double>> tokens;  ///< of each block and expert, over all steps
};

/// The depth of multi-token prediction in the name of a loss of training.jsonl: 3
/// of "mtp_loss_3"; nothing for other fields.
std::optional<std::int64_t> mtp_depth(std::string_view field);

struct TrainingLog {
  std::map<std::string, Curve> curves;  ///< by name of the field; only fields that some line has
  /// Seconds of a step: the whole step, then data_seconds, communication_seconds and
  /// communication_waiting_seconds, 0 where a line lacks one. The whole is num_tokens_per_step / tps.
  RunMeans times;
  bool has_data_times = false, has_communication_times = false;
  std::vector<ProgramStart> starts;
  ExpertLog experts;
  std::int64_t lines = 0, damaged = 0;
  std::int64_t first_step = 0, last_step = 0, last_epoch = 0;
  std::string first_timestamp, last_timestamp;
  std::int64_t skipped_steps = 0;
  std::vector<double> not_finite;  ///< the first steps whose loss is not finite
  std::int64_t not_finite_steps = 0;
  double seconds = 0, tokens = 0;  ///< of the steps that have both
  std::int64_t timed_steps = 0;    ///< number of these steps
};

struct ValidationLog {
  std::map<std::string, Curve> curves;  ///< val_loss, exact_match, f1
  std::int64_t damaged = 0;
};

/// Throws Error naming the file when it cannot be read.
TrainingLog read_training_log(const std::filesystem::path& path);
ValidationLog read_validation_log(const std::filesystem::path& path);

}  // namespace nemocube::run_report
