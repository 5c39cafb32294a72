#include "train/checkpoint/run_state.h"

#include "data/json/atomic_file.h"
#include "data/json/json.h"

namespace nemocube {

void write_run_state(const std::filesystem::path& file, const RunState& s) {
  const Json json{{"step", s.step},
                  {"scheduler_steps", s.scheduler_steps},
                  {"optimizer_steps", s.optimizer_steps},
                  {"samples", s.samples},
                  {"skipped_steps", s.skipped_steps},
                  {"nonfinite_in_a_row", s.nonfinite_in_a_row},
                  {"loader", to_json(s.loader)}};
  write_file_atomically(file, dump_json(json) + "\n");
}

RunState read_run_state(const std::filesystem::path& file) {
  const Json json = read_json_file(file);
  const JsonView view(json, file.string());
  RunState s;
  const auto count = [&](const char* name) {
    const JsonView value = view.at(name);
    if (value.integer() < 0) value.refuse("an integer from 0");
    return value.integer();
  };
  s.step = count("step");
  s.scheduler_steps = count("scheduler_steps");
  s.optimizer_steps = count("optimizer_steps");
  s.samples = count("samples");
  s.skipped_steps = count("skipped_steps");
  s.nonfinite_in_a_row = count("nonfinite_in_a_row");
  s.loader = loader_state_from_json(view.at("loader"));
  return s;
}

}  // namespace nemocube
