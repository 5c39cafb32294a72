#include "train/run/tensorboard.h"

#include <doctest/doctest.h>

#include "model/test_models.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("tensorboard: options from the recipe") {
  Recipe recipe;
  recipe.checkpoint.checkpoint_dir = "runs/x";
  CHECK_FALSE(tensorboard_options(recipe).has_value());
  recipe.tensorboard.emplace();
  CHECK(tensorboard_options(recipe)->folder == "runs/x/tensorboard");
  recipe.tensorboard->tensorboard_dir = "events";
  recipe.tensorboard->tensorboard_log_interval = 7;
  recipe.tensorboard->log_memory_to_tensorboard = true;
  const auto options = tensorboard_options(recipe);
  CHECK(options->folder == "events");
  CHECK(options->log_interval == 7);
  CHECK(options->log_memory);
  CHECK_FALSE(options->log_timers);
  recipe.tensorboard->enabled = false;
  CHECK_FALSE(tensorboard_options(recipe).has_value());
}

TEST_CASE("tensorboard: losses of experts without coefficient, for one of the MoE blocks") {
  const ModelConfig config = tiny_config("ME*-E");
  MoeSection coefficients;
  coefficients.seq_aux_loss_coeff = 0.25;
  coefficients.z_loss_coeff = 0.5;
  const std::vector<std::pair<std::string, double>> losses{{"seq_aux_loss", 2}, {"z_loss", 3}},
      means{{"seq_aux_loss", 4}, {"z_loss", 3}};
  CHECK(mean_auxiliary_losses(coefficients, config, losses) == means);
  CHECK(mean_auxiliary_losses(coefficients, config, {}).empty());
  // Two depths add two calls, whether their weights are the same or not.
  const std::vector<std::pair<std::string, double>> of_four{{"seq_aux_loss", 2}, {"z_loss", 1.5}};
  for (const bool repeated : {false, true})
    CHECK(mean_auxiliary_losses(coefficients, with_mtp(config, 2, repeated), losses) == of_four);
}
