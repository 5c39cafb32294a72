#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/json/test_dir.h"
#include "model/test_models.h"
#include "train/checkpoint/checkpoint.h"

/// Small runs on one rank, for the tests of their checkpoints.
namespace nemocube::testing {

inline CheckpointSection section_in(const TestDir& dir) {
  CheckpointSection s;
  s.checkpoint_dir = (dir / "runs").string();
  return s;
}

/// A model on one rank, and its optimizer, with drawn values.
struct DrawnRun {
  explicit DrawnRun(DType dtype, std::uint64_t seed, OptimizerKind kind = OptimizerKind::adamw,
                    const char* pattern = "ME*-", Device device = Device::cpu) {
    ModelConfig config = tiny_config(pattern);
    config.dtype = dtype;
    Stack drawn(config, dtype, Device::cpu);
    randomise(drawn, seed);
    loaded.model = std::make_unique<Stack>(config, dtype, device);
    copy_weights(*loaded.model, drawn);
    loaded.files = default_weight_files(config);
    OptimizerOptions o;
    o.kind = kind;
    o.momentum = 0.5;
    optimizer = std::make_unique<Optimizer>(loaded.model->parameters(), o);
    // Masters and moments that a fresh optimizer would not have.
    for (const StateTensor& t : optimizer->state()) {
      const Tensor values = Tensor::empty(t.value.shape(), t.value.dtype(), Device::cpu);
      fill_normal(values, RandomStream(seed, t.name), 0, 1);
      t.value.copy_from(values);
    }
    optimizer->set_steps(17);
  }
  LoadedModel loaded;
  std::unique_ptr<Optimizer> optimizer;
};

inline RunState state_after(std::int64_t steps) {
  RunState s;
  s.step = steps;
  s.scheduler_steps = s.optimizer_steps = steps - 1;
  s.schedule_length = 50;
  s.samples = 4 * steps;
  s.skipped_steps = 1;
  s.nonfinite_in_a_row = 1;
  s.loader = {1, 40, 100, 7};
  if (steps > 6) s.early_stopping = {"long", steps / 3.0, 4, 2, 6};
  return s;
}

inline void point_to(const std::filesystem::path& link, const char* target) {
  std::filesystem::remove(link);
  std::filesystem::create_directory_symlink(target, link);
}

using Names = std::vector<std::string>;

}  // namespace nemocube::testing
