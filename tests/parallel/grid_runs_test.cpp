#include <doctest/doctest.h>

#include <csignal>

#include "tests/parallel/rank_runs.h"
#include "tests/support/mpirun.h"
#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

// The program on process grids, as people start it.

namespace {

namespace fs = std::filesystem;

struct Grid {
  int ranks;
  Words overrides;
};

const Words pipeline_of_experts{"distributed.pp_size=2", "distributed.ep_size=2",
                                "distributed.pipeline.pp_schedule=1f1b",
                                "distributed.pipeline.pp_microbatch_size=1"};
const Words zero_bubble{"distributed.pp_size=2", "distributed.pipeline.pp_schedule=zbv",
                        "distributed.pipeline.pp_microbatch_size=1"};
const Words more_ranks_than_heads{"distributed.tp_size=4", "distributed.sequence_parallel=true",
                                  "distributed.ep_size=2", "distributed.expert_tp_size=2"};
const Words sequences_and_experts{"distributed.tp_size=2", "distributed.cp_size=2", "distributed.ep_size=2"};
const Words cut_rows_and_sequences = plus(sequences_and_experts, {"distributed.sequence_parallel=true"});
const Words experts{"distributed.ep_size=2"};

}  // namespace

TEST_CASE("grid runs: one that is stopped or killed and resumed gives the bits of one that was not") {
  struct Case : Grid {
    int signal;
  };
  const Case cases[] = {{{4, pipeline_of_experts}, SIGKILL},
                        {{2, zero_bubble}, SIGTERM},
                        {{4, more_ranks_than_heads}, SIGKILL},
                        {{4, sequences_and_experts}, SIGTERM}};
  for (const Case& c : cases) {
    CAPTURE(c.overrides[0]);
    CAPTURE(c.overrides[1]);
    const RunDir dir;
    const auto command = [&](const Words& overrides) {
      return mpirun(c.ranks, RunDir::train_command(plus(c.overrides, overrides)));
    };
    const Words resumed{"checkpoint.checkpoint_dir=resumed"};
    const auto straight = run_process(command({}), dir.path());
    CAPTURE(straight.err);
    REQUIRE(straight.exit_code == 0);
    {
      Process ended(command(resumed), dir.path());
      wait_for(dir / "resumed" / "LATEST");
      const std::vector<int> ranks = children_of(ended.pid());
      if (!ranks.empty()) ::kill(ranks.back(), c.signal);
      const auto result = ended.wait();
      CAPTURE(result.err);
      CHECK(result.exit_code != 0);
    }
    const auto rest = run_process(command(resumed), dir.path());
    CAPTURE(rest.err);
    REQUIRE(rest.exit_code == 0);
    CHECK(rest.err.find("resumed from") != std::string::npos);
    CHECK(differences(dir / "straight" / "epoch_1_step_11", dir / "resumed" / "epoch_1_step_11") == "");
    CHECK(repeatable(dir / "straight" / "training.jsonl") == repeatable(dir / "resumed" / "training.jsonl"));

    // One rank reads the model, and its loss is the one that the grid has found.
    const auto eval = run_process({program(), "eval", "recipe.yaml", "--model", "straight", "--json", "--set",
                                   "evaluation.max_new_tokens=1"},
                                  dir.path());
    CAPTURE(eval.err);
    REQUIRE(eval.exit_code == 0);
    const auto validation = read_jsonl(dir / "straight" / "validation.jsonl");
    CHECK(parse_json(eval.out, "eval")["val_loss"].get<double>() ==
          doctest::Approx(validation.back()["val_loss"].get<double>()).epsilon(1e-5));
  }
}

TEST_CASE("grid runs: eval gives the numbers and answers of one rank") {
  const RunDir dir;
  const auto trained =
      run_process(RunDir::train_command({"step_scheduler.val_every_steps=null"}), dir.path());
  CAPTURE(trained.err);
  REQUIRE(trained.exit_code == 0);
  const auto eval = [&](const std::string& answers, const Words& overrides) {
    Words command{program(), "eval", "recipe.yaml", "--model", "straight", "--json"};
    for (const std::string& set :
         plus({"evaluation.max_new_tokens=4", "validation_dataset.limit_dataset_samples=7",
               "evaluation.limit_samples=7", "evaluation.predictions_path=" + answers},
              overrides))
      command = plus(command, {"--set", set});
    return command;
  };
  const auto one = run_process(plus(eval("one.json", {}), {"--logprobs", "one.jsonl"}), dir.path());
  CAPTURE(one.err);
  REQUIRE(one.exit_code == 0);
  const auto want_rows = read_jsonl(dir / "one.jsonl");
  Json want = parse_json(one.out, "one");
  const double want_loss = want["val_loss"].get<double>();
  want.erase("val_loss");
  CHECK(want["logprobs"] == "one.jsonl");
  want["logprobs"] = "grid.jsonl";
  for (const Grid& grid :
       {Grid{4, pipeline_of_experts}, Grid{2, zero_bubble}, Grid{4, more_ranks_than_heads},
        Grid{4, sequences_and_experts}, Grid{4, cut_rows_and_sequences}, Grid{2, experts}}) {
    CAPTURE(grid.overrides[0]);
    const auto run =
        run_process(mpirun(grid.ranks, plus(eval("grid.json", grid.overrides), {"--logprobs", "grid.jsonl"})),
                    dir.path());
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    Json got = parse_json(run.out, "grid");
    CHECK(got["val_loss"].get<double>() == doctest::Approx(want_loss).epsilon(1e-5));
    got.erase("val_loss");
    CHECK(got == want);
    CHECK(slurp(dir / "grid.json") == slurp(dir / "one.json"));
    const auto got_rows = read_jsonl(dir / "grid.jsonl");
    REQUIRE(got_rows.size() == want_rows.size());
    for (std::size_t row = 0; row < got_rows.size(); ++row) {
      CHECK(got_rows[row]["row"] == row);
      CHECK(got_rows[row]["positions"] == want_rows[row]["positions"]);
      CHECK(got_rows[row]["tokens"] == want_rows[row]["tokens"]);
      const auto numbers = got_rows[row]["logprobs"].get<std::vector<double>>(),
                 expected = want_rows[row]["logprobs"].get<std::vector<double>>();
      REQUIRE(numbers.size() == expected.size());
      for (std::size_t i = 0; i < numbers.size(); ++i)
        CHECK(numbers[i] == doctest::Approx(expected[i]).epsilon(1e-5));
    }
  }
}
