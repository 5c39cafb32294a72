#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <set>
#include <thread>

#include "data/safetensors/reader.h"
#include "tests/parallel/rank_runs.h"
#include "tests/parallel/same_runs.h"
#include "tests/support/compare.h"
#include "tests/support/mpirun.h"
#include "tests/support/occurrences.h"
#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

// The program on several ranks, as people start it.

namespace {

namespace fs = std::filesystem;
// Microbatches of one row, so that they are the same rows however many ranks share them.
Words train_words(const std::string& directory, const Words& overrides) {
  return RunDir::train_command(plus({"step_scheduler.local_batch_size=1", "step_scheduler.max_steps=10",
                                     "checkpoint.enabled=false", "checkpoint.checkpoint_dir=" + directory},
                                    overrides));
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TEST_CASE("ranks: train gives the losses of one rank, with every strategy") {
  const RunDir dir;
  const auto one = run_process(train_words("one", {}), dir.path());
  CAPTURE(one.err);
  REQUIRE(one.exit_code == 0);
  struct Case {
    int ranks;
    Words overrides;
  };
  const Case cases[] = {
      {2, {}},
      {2, {"distributed.strategy=ddp", "distributed.activation_checkpointing=true"}},
      {4, {"distributed.dp_replicate_size=2", "distributed.activation_checkpointing=true"}},
      {2, {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=1"}},
      {4, {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=2"}},
  };
  int number = 0;
  for (const Case& c : cases) {
    CAPTURE(number);
    const std::string name = cat("run", number++);
    const auto run = run_process(mpirun(c.ranks, train_words(name, c.overrides)), dir.path());
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    check_same_runs(dir / name, dir / "one", 1e-5);
    CHECK(run.err.find(cat(c.ranks, " ranks: ")) != std::string::npos);
    CHECK(occurrences(run.err, "done: 10 steps") == 1);
  }
}

TEST_CASE("ranks: batches that do not divide among three ranks, validation of every row, answers") {
  const RunDir dir;
  const Words six{"step_scheduler.global_batch_size=6", "dataset.limit_dataset_samples=44",
                  "step_scheduler.num_epochs=1", "evaluation.squad_metrics=true",
                  "evaluation.max_new_tokens=3"};
  const auto one = run_process(train_words("one", six), dir.path());
  CAPTURE(one.err);
  REQUIRE(one.exit_code == 0);
  const auto run = run_process(mpirun(3, train_words("three", six)), dir.path());
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const auto want = read_jsonl(dir / "one" / "validation.jsonl"),
             got = read_jsonl(dir / "three" / "validation.jsonl");
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i]["num_label_tokens"] == want[i]["num_label_tokens"]);
    CHECK(got[i]["f1"].get<double>() == doctest::Approx(want[i]["f1"].get<double>()));
  }
}

TEST_CASE("ranks: forward gives the logits, loss and gradients of one rank, also with more ranks than rows") {
  const fs::path golden = source_dir() / "tests" / "goldens" / "all_four";
  const TestDir dir;
  const auto forward = [&](const std::string& output) {
    return Words{program(),  "forward",
                 "--model",  golden.string(),
                 "--input",  (golden / "input.safetensors").string(),
                 "--output", (dir / output).string(),
                 "--grads"};
  };
  REQUIRE(run_process(forward("1")).exit_code == 0);
  const SafetensorsFile want((dir / "1").string());
  for (const int ranks : {2, 5}) {
    const auto run = run_process(mpirun(ranks, forward(std::to_string(ranks))));
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    const SafetensorsFile got((dir / std::to_string(ranks)).string());
    REQUIRE(got.tensors().size() == want.tensors().size());
    for (const StoredTensor& t : want.tensors()) {
      CAPTURE(t.name);
      CHECK(relative_error(got.tensor(t.name), want.tensor(t.name)) < 1e-5);
    }
  }
}

TEST_CASE("ranks: forward gives the log-probabilities of one rank, on every layout") {
  const fs::path goldens = source_dir() / "tests" / "goldens";
  const TestDir dir;
  const auto forward = [&](const std::string& model, const Words& layout) {
    Words command{program(),   "forward",
                  "--model",   (goldens / model).string(),
                  "--input",   (goldens / model / "input.safetensors").string(),
                  "--output",  (dir / "out").string(),
                  "--logprobs"};
    for (const std::string& key : layout) command = plus(command, {"--set", "distributed." + key});
    return command;
  };
  const auto result = [&](const Words& command) {
    const auto run = run_process(command);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    return SafetensorsFile((dir / "out").string()).tensor("logprobs").clone();
  };
  struct Case {
    std::string model;
    int ranks;
    Words layout;
  };
  const Case cases[] = {{"all_four", 2, {}},
                        {"all_four", 5, {"strategy=megatron_fsdp", "zero_dp_strategy=1"}},
                        {"all_four", 4, {"tp_size=2", "sequence_parallel=true", "cp_size=2"}},
                        {"all_four", 4, {"pp_size=2", "ep_size=2"}},
                        {"gemma3", 4, {"tp_size=2", "pp_size=2"}},
                        {"phi", 2, {"tp_size=2"}},
                        {"baichuan", 2, {"tp_size=2"}}};
  for (const Case& c : cases) {
    CAPTURE(c.model);
    CAPTURE(c.layout.empty() ? "" : c.layout[0]);
    const Tensor one = result(forward(c.model, {})),
                 got = result(mpirun(c.ranks, forward(c.model, c.layout)));
    REQUIRE(got.shape() == one.shape());
    CHECK(relative_error(got, one) < 1e-5);
  }
  const auto refused = run_process(mpirun(2, forward("all_four", {}), forward("all_four", {"tp_size=2"})));
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("the command line of rank 1 is not that of rank 0") != std::string::npos);
}

TEST_CASE("ranks: a run that is stopped or killed and resumed gives the bits of one that was not") {
  for (const Words& strategy :
       {Words{}, Words{"distributed.strategy=ddp"},
        Words{"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=2"}}) {
    const RunDir dir;
    const Words resumed = plus(strategy, {"checkpoint.checkpoint_dir=resumed"});
    const auto train = [&](const Words& overrides) {
      return run_process(mpirun(2, RunDir::train_command(overrides)), dir.path());
    };
    const auto straight = train(strategy);
    CAPTURE(straight.err);
    REQUIRE(straight.exit_code == 0);
    {
      Process killed(mpirun(2, RunDir::train_command(resumed)), dir.path());
      wait_for(dir / "resumed" / "LATEST");
      for (const int rank : children_of(killed.pid())) ::kill(rank, SIGKILL);
      CHECK(killed.wait().exit_code != 0);
    }
    const auto rest = train(resumed);
    CAPTURE(rest.err);
    REQUIRE(rest.exit_code == 0);
    CHECK(rest.err.find("resumed from") != std::string::npos);
    for (const char* step : {"epoch_1_step_9", "epoch_1_step_11"})
      CHECK(differences(dir / "straight" / step, dir / "resumed" / step) == "");
    CHECK(repeatable(dir / "straight" / "training.jsonl") == repeatable(dir / "resumed" / "training.jsonl"));

    // The model of a checkpoint is whole, whoever reads it.
    const auto eval = run_process({program(), "eval", "recipe.yaml", "--model", "straight", "--json", "--set",
                                   "evaluation.max_new_tokens=2"},
                                  dir.path());
    CAPTURE(eval.err);
    REQUIRE(eval.exit_code == 0);
    const auto validation = read_jsonl(dir / "straight" / "validation.jsonl");
    CHECK(parse_json(eval.out, "eval")["val_loss"].get<double>() ==
          doctest::Approx(validation.back()["val_loss"].get<double>()).epsilon(1e-5));

    // One rank takes the checkpoint over, and says from whom.
    const auto other = run_process(RunDir::train_command({}), dir.path());
    CAPTURE(other.err);
    CHECK(other.exit_code == 0);
    CHECK(other.err.find(" was written by 2 ranks (") != std::string::npos);
    CHECK(other.err.find(", this run has 1 rank") != std::string::npos);
  }
}

TEST_CASE("ranks: a signal that one rank gets ends all after the same step, with a checkpoint") {
  const Words command = RunDir::train_command(
      {"step_scheduler.global_batch_size=3", "step_scheduler.local_batch_size=1",
       "step_scheduler.max_steps=100000", "step_scheduler.num_epochs=10000",
       "step_scheduler.ckpt_every_steps=100000", "step_scheduler.val_every_steps=null"});
  // mpirun kills rank 0 if another rank ends before it; what rank 0 has to say must be out by then.
  const Words late_rank_0{"/usr/bin/env", "LD_PRELOAD=" + preload_library("late_rank"),
                          // The sanitizer's library comes after the preloaded one.
                          cat("ASAN_OPTIONS=verify_asan_link_order=0:",
                              std::getenv("ASAN_OPTIONS") ? std::getenv("ASAN_OPTIONS") : "")};
  for (const Words& words : {command, plus(late_rank_0, command)}) {
    const RunDir dir;
    Process job(mpirun(3, words), dir.path());
    wait_for(dir / "straight" / "training.jsonl");
    const std::vector<int> ranks = children_of(job.pid());
    REQUIRE(ranks.size() == 3);
    ::kill(ranks[2], SIGTERM);
    const ProcessResult result = job.wait();
    CAPTURE(result.err);
    CHECK(result.exit_code == 128 + SIGTERM);
    CHECK(result.err.find("stopped by signal 15") != std::string::npos);
    // The whole command: mpirun, its options, what stands before the program, the program, train and the
    // recipe. mpirun of Open MPI 5 becomes prterun, whatever name it was called by.
    const fs::path called = mpirun_program();
    const std::string launcher =
        open_mpi_release() < 5 ? called.string() : (called.parent_path() / "mpirun").string();
    std::string start = cat("to go on: ", launcher, " --oversubscribe --bind-to none -np 3 ");
    const std::size_t to_recipe = words.size() - command.size() + 3;
    for (std::size_t i = 0; i < to_recipe; ++i) start += words[i] + " ";
    CHECK(result.err.find(start + "--set ") != std::string::npos);
    const auto steps = read_jsonl(dir / "straight" / "training.jsonl");
    CHECK(fs::canonical(dir / "straight" / "LATEST")
              .filename()
              .string()
              .ends_with(cat("_step_", steps.size() - 1)));
  }
}

TEST_CASE(
    "ranks: SIGUSR1 to mpirun ends a run with a checkpoint, and the run says so where nothing else would") {
  const RunDir dir;
  Process job(
      mpirun(2, RunDir::train_command({"step_scheduler.max_steps=100000", "step_scheduler.num_epochs=10000",
                                       "step_scheduler.ckpt_every_steps=100000",
                                       "step_scheduler.val_every_steps=null"})),
      dir.path());
  wait_for(dir / "straight" / "training.jsonl");
  job.signal(SIGUSR1);
  const int mpirun_process = job.pid();
  const ProcessResult result = job.wait();
  CAPTURE(result.err);
  CHECK(result.exit_code == 128 + SIGUSR1);
  if (open_mpi_release() >= 5)
    CHECK(result.err.find(cat("kill -USR1 ", mpirun_process, " ends this run with a checkpoint")) !=
          std::string::npos);
  const auto steps = read_jsonl(dir / "straight" / "training.jsonl");
  CHECK(fs::canonical(dir / "straight" / "LATEST")
            .filename()
            .string()
            .ends_with(cat("_step_", steps.size() - 1)));
}

TEST_CASE("ranks: processes that a launcher starts without MPI do not each train alone") {
  const RunDir dir;
  const Words train =
      RunDir::train_command({"step_scheduler.max_steps=1", "lr_scheduler=null", "validation_dataset=null"});
  for (const auto& [variables, why] :
       {std::pair{Words{"SLURM_STEP_NUM_TASKS=8", "SLURM_PROCID=3"},
                  "srun has started 8 processes without MPI"},
        std::pair{Words{"WORLD_SIZE=2", "RANK=0", "LOCAL_RANK=0"}, "(WORLD_SIZE is 2)"}}) {
    CAPTURE(why);
    const ProcessResult refused = run_process(plus(plus({"env"}, variables), train), dir.path());
    CHECK(refused.exit_code == 2);
    CHECK(refused.err.find(why) != std::string::npos);
    CHECK(std::ranges::count(refused.err, '\n') == 1);
    CHECK_FALSE(fs::exists(dir / "straight"));
    // Ranks that mpirun starts in such a place know of each other, and so does one rank.
    for (const int ranks : {1, 2}) {
      const ProcessResult trained =
          run_process(mpirun(ranks, plus(plus({"env"}, variables), train)), dir.path());
      CAPTURE(trained.err);
      CHECK(trained.exit_code == 0);
      fs::remove_all(dir / "straight");
    }
  }
}

TEST_CASE("ranks: eval gives the numbers of one rank") {
  const RunDir dir;
  const auto trained = run_process(
      RunDir::train_command({"step_scheduler.max_steps=3", "lr_scheduler.lr_warmup_steps=1"}), dir.path());
  CAPTURE(trained.err);
  REQUIRE(trained.exit_code == 0);
  const Words eval{program(),
                   "eval",
                   "recipe.yaml",
                   "--model",
                   "straight/LATEST/model",
                   "--json",
                   "--set",
                   "evaluation.max_new_tokens=4",
                   "--set",
                   "validation_dataset.limit_dataset_samples=7"};
  const auto one = run_process(eval, dir.path());
  REQUIRE(one.exit_code == 0);
  const auto run = run_process(mpirun(3, eval), dir.path());
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  Json want = parse_json(one.out, "one"), got = parse_json(run.out, "three");
  CHECK(got["val_loss"].get<double>() == doctest::Approx(want["val_loss"].get<double>()).epsilon(1e-5));
  want.erase("val_loss");
  got.erase("val_loss");
  CHECK(got == want);
}

TEST_CASE("ranks: one that differs, or fails, ends the job with one message of its own") {
  const RunDir dir;
  fs::create_directories(dir / "other");
  for (const char* name : {"model", "samples"})
    fs::create_directory_symlink(dir / name, dir / "other" / name);
  struct Case {
    const char* what;
    std::string recipe;
    std::vector<std::string> parts;
  };
  std::string other_lr = small_recipe(), broken = small_recipe();
  other_lr.replace(other_lr.find("lr: 0.01"), 8, "lr: 0.02");
  broken.replace(broken.find("name: samples/train.json"), 24, "name: samples/no_such.json");
  const Case cases[] = {
      {"another recipe", other_lr, {"the recipe of rank 2 is not that of rank 0", "0.02", "0.01"}},
      {"a failing rank", broken, {"[rank 2] error: ", "no_such.json"}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    spit(dir / "other" / "recipe.yaml", c.recipe);
    const auto start = std::chrono::steady_clock::now();
    const Words same = train_words((dir / "run").string(), {"step_scheduler.global_batch_size=3"});
    const Words elsewhere = plus({"env", "-C", (dir / "other").string()}, same);
    const auto run = run_process(mpirun(3, same, elsewhere), dir.path());
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(seconds_since(start) < 15);
    for (const std::string& part : c.parts) CHECK(run.err.find(part) != std::string::npos);
    CHECK(occurrences(run.err, "error: ") <= 2);
  }
}

TEST_CASE("ranks: a setting of one rank from outside the recipe ends the job") {
  const RunDir dir;
  // Three ranks, of which the last one has another environment.
  const auto run_with = [&](const std::string& variable, const Words& command) {
    return run_process(mpirun(3, command, plus({"env", variable}, command)), dir.path());
  };
  const Words train = train_words("run", {"step_scheduler.global_batch_size=3"});
  const fs::path golden = source_dir() / "tests" / "goldens" / "all_four";
  struct Case {
    std::string variable;
    Words command;
    std::string message;
  };
  const std::string weights = "NEMOAUTOMODEL_PP_BLOCK_WEIGHTS=mamba=2", isa = "ONEDNN_MAX_CPU_ISA=SSE41";
  const std::string other_weights =
      "the environment variable NEMOAUTOMODEL_PP_BLOCK_WEIGHTS is not the same on all ranks: rank 2 has "
      "'mamba=2'; "
      "ranks 0 and 1 have none";
  const std::string other_isa =
      "is not the same on all ranks: rank 2 has cpu_isa_sse41; ranks 0 and 1 have cpu_isa_";
  const Case cases[] = {
      {weights, train, other_weights},
      {"NEMOTRONH_TP_PARALLEL_CE_IMPL=off", train, "rank 2 has 'off'; ranks 0 and 1 have none"},
      {"OMP_NUM_THREADS=2", train,
       "OMP_NUM_THREADS is not the same on all ranks: rank 2 has '2'; ranks 0 and 1"},
      {"OMP_MAX_ACTIVE_LEVELS=0", train,
       "OMP_MAX_ACTIVE_LEVELS is not the same on all ranks: rank 2 has '0'"},
      {"ONEDNN_DEFAULT_FPMATH_MODE=ANY", train,
       "ONEDNN_DEFAULT_FPMATH_MODE) is not the same on all ranks: rank 2"},
      {isa, train, other_isa},
      {weights, {program(), "eval", "recipe.yaml"}, other_weights},
      {isa,
       {program(), "forward", "--model", golden.string(), "--input", (golden / "input.safetensors").string(),
        "--output", (dir / "out").string()},
       other_isa},
      {isa, {program(), "bench", "step", "--config", "model", "--batch", "3", "--seq", "8"}, other_isa},
  };
  for (const Case& c : cases) {
    CAPTURE(c.variable);
    CAPTURE(c.command[1]);
    const auto run = run_with(c.variable, c.command);
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.err.find(c.message) != std::string::npos);
    CHECK(occurrences(run.err, "error: ") == 1);
  }
  CHECK_FALSE(fs::exists(dir / "out"));
  const Words allowed = plus(train, {"--set", "debug.allow_differing_instruction_sets=true"});
  const auto run = run_with(isa, allowed);
  CAPTURE(run.err);
  CHECK(run.exit_code == 0);
}

TEST_CASE("ranks: one that was given another command or other options ends the job, which names both") {
  const RunDir dir;
  const Words train = train_words("run", {"step_scheduler.global_batch_size=3"});
  struct Case {
    Words last;
    std::string message;  // empty: allowed
  };
  const Case cases[] = {
      {plus(train, {"--profile", "steps=1-2"}),
       "the command line of rank 2 is not that of rank 0: '--profile: steps=1-2' against nothing"},
      {{program(), "eval", "recipe.yaml"},
       "the command line of rank 2 is not that of rank 0: 'eval' against 'train'"},
      {plus(train, {"--set", "optimizer.lr=0.5"}), "the recipe of rank 2 is not that of rank 0: "},
      {plus(train, {"--log-level", "warning"}), ""}};
  for (const Case& c : cases) {
    CAPTURE(c.message);
    const auto run = run_process(mpirun(3, train, c.last), dir.path());
    CAPTURE(run.err);
    CHECK(run.exit_code == (c.message.empty() ? 0 : 2));
    CHECK(run.err.find(c.message) != std::string::npos);
    CHECK(occurrences(run.err, "error: ") == (c.message.empty() ? 0 : 1));
  }
}

TEST_CASE("ranks: eval, forward and bench step refuse ranks that read other things") {
  const RunDir dir;
  const fs::path golden = source_dir() / "tests" / "goldens" / "all_four";
  fs::create_directories(dir / "other");
  for (const char* name : {"samples"}) fs::create_directory_symlink(dir / name, dir / "other" / name);
  fs::copy(dir / "model", dir / "other" / "model", fs::copy_options::recursive);
  fs::copy(dir / "recipe.yaml", dir / "other" / "recipe.yaml");
  std::string config = slurp(dir / "model" / "config.json");
  spit(dir / "other" / "model" / "config.json", config + "\n");
  const auto differs = [&](const Words& first, const Words& last, const std::string& message) {
    CAPTURE(first[1]);
    const Words elsewhere = plus({"env", "-C", (dir / "other").string()}, last);
    const auto run = run_process(mpirun(3, first, elsewhere), dir.path());
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.err.find(message) != std::string::npos);
  };
  const Words eval{program(), "eval", "recipe.yaml"};
  differs(eval, eval, "what is read of rank 2 is not that of rank 0");
  differs(eval, plus(eval, {"--set", "evaluation.max_new_tokens=3"}),
          "the recipe of rank 2 is not that of rank 0");
  const Words forward{program(),  "forward", "--model",
                      "model",    "--input", (golden / "input.safetensors").string(),
                      "--output", "out"};
  differs(forward, forward, "what is read of rank 2 is not that of rank 0");
  differs(forward, plus(forward, {"--dtype", "bf16"}),
          "the command line of rank 2 is not that of rank 0: '--dtype: bf16'");
  const Words bench{program(), "bench", "step", "--config", "model", "--batch", "3", "--seq", "8"};
  differs(bench, bench, "what is read of rank 2 is not that of rank 0");
  differs(bench, plus(bench, {"--microbatches", "2"}), "the command line of rank 2 is not that of rank 0");
}

TEST_CASE("ranks: when one is killed, all end soon, and none is left behind") {
  const RunDir dir;
  Process job(
      mpirun(3, train_words("killed",
                            {"step_scheduler.max_steps=100000", "step_scheduler.num_epochs=10000",
                             "step_scheduler.val_every_steps=null", "step_scheduler.global_batch_size=3"})),
      dir.path());
  wait_for(dir / "killed" / "training.jsonl");
  const std::vector<int> ranks = children_of(job.pid());
  REQUIRE(ranks.size() == 3);
  const auto start = std::chrono::steady_clock::now();
  ::kill(ranks[1], SIGKILL);
  const ProcessResult result = job.wait();
  CAPTURE(result.err);
  CHECK(result.exit_code != 0);
  CHECK(seconds_since(start) < 15);
  CHECK(result.err.find("signal 9") != std::string::npos);
  for (const int pid : ranks) {
    for (int i = 0; i < 500 && is_alive(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK_FALSE(is_alive(pid));
  }
}

TEST_CASE("ranks: each command under one mpirun says why it fails, and equal messages are written once") {
  const RunDir dir;
  const std::string program = nemocube::testing::program();
  const auto run = run_process(
      mpirun(3, {"sh", "-c",
                 cat(program, " train no.yaml; ", program, " train no.yaml; ", program, " eval other.yaml")}),
      dir.path());
  CAPTURE(run.err);
  CHECK(run.exit_code == 2);
  CHECK(occurrences(run.err, "error: no.yaml: cannot open this recipe") == 2);
  CHECK(occurrences(run.err, "error: other.yaml: cannot open this recipe") == 1);
  CHECK(occurrences(run.err, "error: ") == 3);
}

TEST_CASE("ranks: a second command with MPI under one mpirun runs, or says that it cannot start") {
  const std::string bench = cat(program(), " bench comm --sizes 1k --seconds 0.001");
  const auto run = run_process(mpirun(2, {"sh", "-c", cat(bench, "; ", bench)}));
  CAPTURE(run.err);
  if (open_mpi_release() >= 5) {
    CHECK(run.exit_code == 0);
    const std::size_t first = run.out.find("all_reduce");
    CHECK(first != std::string::npos);
    CHECK(run.out.rfind("all_reduce") > first);
    return;
  }
  CHECK(run.exit_code == 2);
  CHECK(run.out.find("all_reduce") != std::string::npos);
  CHECK(occurrences(run.err, "error: ") == 1);
  CHECK(occurrences(run.err, "error: an earlier command under this mpirun has used MPI") == 1);
}

TEST_CASE("ranks: the processes and all their threads are named after the program") {
  const RunDir dir;
  const Words endless{"step_scheduler.max_steps=100000", "step_scheduler.num_epochs=10000",
                      "step_scheduler.val_every_steps=null"};
  Process job(mpirun(2, train_words("named", endless)), dir.path());
  wait_for(dir / "named" / "training.jsonl");
  const std::vector<int> ranks = children_of(job.pid());
  REQUIRE(ranks.size() == 2);
  const auto name = [](const fs::path& of) {
    std::string text;
    std::getline(std::ifstream(of / "comm"), text);
    return text;
  };
  for (const int pid : ranks) {
    CHECK(name(fs::path("/proc") / std::to_string(pid)) == "nemocube");
    std::set<std::string> names;
    for (const auto& thread : fs::directory_iterator(fs::path("/proc") / std::to_string(pid) / "task"))
      names.insert(name(thread.path()));
    CHECK(names == std::set<std::string>{"nemocube", "nemocube:comm"});
  }
  job.signal(SIGTERM);
  job.wait();
}
