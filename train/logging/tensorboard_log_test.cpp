#include "train/logging/tensorboard_log.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tests/support/read_events.h"
#include "train/logging/run_log.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Steps = std::vector<std::int64_t>;

TrainingRecord record_of(std::int64_t step) {
  TrainingRecord r;
  r.step = step;
  r.loss = 2.5;
  r.grad_norm = 1.25;
  r.lr = 0.5;
  r.peak_bytes = std::int64_t{1} << 29;
  r.seconds = 2;
  r.ranks = 4;
  r.tokens = 80;
  r.label_tokens = 50;
  r.samples = 8;
  r.skipped_steps = 1;
  r.consumed_samples = 8 * (step + 1);
  return r;
}

ValidationRecord validation_of(std::int64_t step, double loss) {
  ValidationRecord r;
  r.step = step;
  r.val_loss = loss;
  r.consumed_samples = 8 * (step + 1);
  return r;
}

}  // namespace

TEST_CASE("tensorboard: Megatron's tags, then AutoModel's") {
  TrainingRecord r = record_of(0);
  const Scalars plain{{"learning-rate", 0.5},
                      {"batch-size", 8},
                      {"lm loss", 2.5},
                      {"grad-norm", 1.25},
                      {"loss", 2.5},
                      {"grad_norm", 1.25},
                      {"lr", 0.5},
                      {"mem", 0.5},
                      {"tps", 40},
                      {"tps_per_gpu", 10},
                      {"num_tokens_per_step", 80},
                      {"num_label_tokens", 50},
                      {"skipped_steps", 1}};
  CHECK(training_scalars({}, r, 2, 0, 1) == plain);
  CHECK(training_scalars_vs_samples({}, r) == Scalars{{"learning-rate vs samples", 0.5},
                                                      {"batch-size vs samples", 8},
                                                      {"lm loss vs samples", 2.5},
                                                      {"grad-norm vs samples", 1.25}});
  // All options, over three steps of six seconds.
  r.mfu = 12.5;
  r.mean_auxiliary_losses = {{"aux_loss", 1}, {"seq_aux_loss", 2}, {"global_aux_loss", 3}, {"z_loss", 4}};
  r.mtp_losses = {3.5, 4.5};
  r.experts = {.tokens = {{3, 1}, {0, 4}}, .imbalance = {1.5, 2}};
  const TensorboardOptions all{{}, 1, true, true, true, true, true};
  CHECK(training_scalars(all, r, 6, 48e12, 3) == Scalars{{"learning-rate", 0.5},
                                                         {"batch-size", 8},
                                                         {"lm loss", 2.5},
                                                         {"world-size", 4},
                                                         {"grad-norm", 1.25},
                                                         {"mtp_1 loss", 3.5},
                                                         {"mtp_2 loss", 4.5},
                                                         {"load_balancing_loss", 1},
                                                         {"seq_load_balancing_loss", 2},
                                                         {"global_load_balancing_loss", 3},
                                                         {"z_loss", 4},
                                                         {"iteration-time", 2},
                                                         {"throughput", 2},
                                                         {"mem-max-allocated-bytes", 536870912},
                                                         {"loss", 2.5},
                                                         {"grad_norm", 1.25},
                                                         {"lr", 0.5},
                                                         {"mem", 0.5},
                                                         {"tps", 40},
                                                         {"tps_per_gpu", 10},
                                                         {"mfu", 12.5},
                                                         {"num_tokens_per_step", 80},
                                                         {"num_label_tokens", 50},
                                                         {"skipped_steps", 1},
                                                         {"expert_imbalance", 2}});
  CHECK(training_scalars_vs_samples(all, r).at(3) == Scalars::value_type{"world-size vs samples", 4});
}

TEST_CASE("tensorboard: what the log has as null is left out") {
  TrainingRecord r = record_of(0);
  r.seconds = 0;
  r.grad_norm.reset();
  for (const auto& [tag, value] : training_scalars({{}, 1, false, true}, r, 0, 0, 1))
    for (const char* absent : {"tps", "tps_per_gpu", "mfu", "grad-norm", "grad_norm", "throughput"})
      CHECK(tag != absent);
}

TEST_CASE("tensorboard: validation, of several sets") {
  ValidationRecord r = validation_of(0, 2);
  CHECK(validation_scalars({}, "default", r) == Scalars{{"lm loss validation", 2}, {"val_loss", 2}});
  r.exact_match = 10;
  r.f1 = 20;
  const TensorboardOptions ppl{{}, 1, false, false, false, false, true};
  CHECK(validation_scalars(ppl, "chat", r) == Scalars{{"lm loss validation chat", 2},
                                                      {"lm loss validation chat ppl", std::exp(2.0)},
                                                      {"val_loss_chat", 2},
                                                      {"exact_match_chat", 10},
                                                      {"f1_chat", 20}});
  CHECK(validation_scalars_vs_samples(ppl, "default", r) ==
        Scalars{{"lm loss validation vs samples", 2}, {"lm loss validation ppl vs samples", std::exp(2.0)}});
  r.val_loss = 21;
  CHECK(validation_scalars(ppl, "default", r).at(1).second == std::exp(20.0));
  r.val_loss = std::numeric_limits<double>::quiet_NaN();
  CHECK(std::isnan(validation_scalars(ppl, "default", r).at(1).second));
}

TEST_CASE("tensorboard: points every so many steps, with the mean time since the last one") {
  const TestDir dir;
  TensorboardLog log({dir.path(), 3, true, true}, {}, std::chrono::system_clock::now);
  for (std::int64_t step = 0; step < 7; ++step) {
    TrainingRecord r = record_of(step);
    r.seconds = static_cast<double>(step);
    r.flops = 1e12 * static_cast<double>(step);
    log.training(r);
  }
  const auto shown = shown_points(dir.path());
  CHECK(shown.at("lm loss").size() == 2);
  CHECK(shown.at("iteration-time") == Points{{2, 1}, {5, 4}});
  CHECK(shown.at("throughput") == Points{{2, 0.25F}, {5, 0.25F}});
  CHECK(steps_of(shown_points(dir / "samples").at("lm loss vs samples")) == Steps{24, 48});
}

TEST_CASE("tensorboard: a resumed run hides what it repeats, over steps and over samples alike") {
  const TestDir dir;
  for (const std::int64_t first : {0, 4}) {
    RunLog log(dir.path(), {},
               {.first_step = first,
                .consumed_samples = 8 * first,
                .tensorboard = TensorboardOptions{.folder = dir / "tensorboard"}});
    for (std::int64_t step = first; step < first + 6; ++step) {
      log.training(record_of(step));
      if (step % 2 == 1) log.validation("default", validation_of(step, static_cast<double>(first)));
    }
  }
  const auto steps = shown_points(dir / "tensorboard"),
             samples = shown_points(dir / "tensorboard" / "samples");
  CHECK(steps_of(steps.at("lm loss")) == Steps{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(steps_of(samples.at("lm loss vs samples")) == Steps{8, 16, 24, 32, 40, 48, 56, 64, 72, 80});
  CHECK(steps.at("lm loss validation") == Points{{1, 0}, {3, 0}, {5, 4}, {7, 4}, {9, 4}});
  CHECK(samples.at("lm loss validation vs samples") == Points{{16, 0}, {32, 0}, {48, 4}, {64, 4}, {80, 4}});
}

TEST_CASE("tensorboard: a branch is shown once its log is kept") {
  const TestDir dir;
  const TensorboardOptions options{.folder = dir / "tensorboard"};
  {
    RunLog log(dir.path(), {}, {.tensorboard = options});
    for (std::int64_t step = 0; step < 4; ++step) log.training(record_of(step));
  }
  RunLog log(
      dir.path(), {},
      {.first_step = 2, .serial = 3, .leaves_branch = true, .consumed_samples = 16, .tensorboard = options});
  log.training(record_of(2));
  CHECK(steps_of(shown_points(options.folder).at("loss")) == Steps{0, 1, 2, 3});
  log.keep_branch();
  CHECK(steps_of(shown_points(options.folder).at("loss")) == Steps{0, 1, 2});
  CHECK(steps_of(shown_points(options.folder / "samples").at("lm loss vs samples")) == Steps{8, 16, 24});
}
