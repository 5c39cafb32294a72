#include <cstdlib>

#include "core/version.h"
#include "tests/bad_input/refused.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("command line: what is missing, unknown or contradictory is refused with a hint") {
  const TestDir dir;
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases{
      {{}, {"subcommand is required", "--help"}},
      {{"trian"}, {"no subcommand 'trian'", "train", "convert"}},
      {{"--foo"}, {"--help"}},
      {{"train"}, {"recipe is required", "--help"}},
      {{"train", "r.yaml", "--foo"}, {"--foo", "--help"}},
      {{"generate", "--model", "x", "--max-new-token", "3"},
       {"not expected", "the nearest option to --max-new-token is --max-new-tokens"}},
      {{"bench", "step", "--config", "x", "--micro-batches=2"},
       {"the nearest option to --micro-batches is --microbatches"}},
      {{"eval"}, {"recipe is required"}},
      {{"generate"}, {"--model is required"}},
      {{"generate", "--model", "x", "--prompt", "a", "--seed", "-1"}, {"--seed", "-1"}},
      {{"inspect", "--recipe", "x", "--samples", "-1"}, {"--samples", "-1"}},
      {{"forward", "--model", "x"}, {"--input is required"}},
      {{"forward", "--model", "x", "--input", "x", "--output", "x", "--grads", "--logprobs"}, {"excludes"}},
      {{"forward", "--model", "x", "--input", "x", "--output", "x", "--set", "distributed.tp_size=2"},
       {"--set requires --logprobs"}},
      {{"forward", "--model", golden("all_four"), "--input", golden("all_four") / "input.safetensors",
        "--output", "x", "--logprobs", "--set", "optimizer.lr=1"},
       {"--set: want a key of distributed, dist_env or debug, got 'optimizer.lr=1'"}},
      {{"eval", "r.yaml", "--gather", "twice"}, {"--gather: want once or each, got 'twice'"}},
      {{"convert", "x"}, {"target is required"}},
      {{"tokenize"}, {"--tokenizer is required"}},
      {{"tokenize", "--tokenizer", "x", "--input", "x", "more"}, {"more"}},
      {{"inspect"}, {"--model or --recipe"}},
      {{"inspect", "--model", "x", "--recipe", "y"}, {"excludes"}},
      {{"inspect", "--samples", "3"}, {"--samples requires --recipe"}},
      {{"inspect", "--model", "nope"}, {"nope"}},
      {{"bench"}, {"subcommand is required"}},
      {{"bench", "step"}, {"--config is required"}},
      {{"bench", "step", "--config", golden("all_four"), "--batch", "0"}, {"at least 1", "0"}},
      {{"bench", "step", "--config", golden("all_four"), "--batch", "99999999999", "--seq", "99999999999"},
       {"99999999999 x 99999999999"}},
      {{"bench", "step", "--config", golden("all_four"), "--dtype", "i64"}, {"--dtype", "'i64'"}},
      {{"bench", "op", "--repeats", "0"}, {"--repeats: want an integer from 1 to 1000000, got '0'"}},
      {{"bench", "op", "--repeats", "010"}, {"--repeats: want an integer from 1 to 1000000, got '010'"}},
      {{"bench", "op", "--repeats", "1x"}, {"--repeats: want an integer from 1 to 1000000, got '1x'"}},
      {{"plan", "x", "--ranks", "1.5"}, {"--ranks: want an integer from 1 to 1000000, got '1.5'"}},
      {{"generate", "--model", "x", "--prompt", "a", "--temperature", "hot"},
       {"--temperature: want a number, got 'hot'"}},
      {{"--log-level", "loud", "inspect", "--model", "x"}, {"'loud'", "warning"}},
  };
  for (const auto& [arguments, parts] : cases) {
    CAPTURE(parts.front());
    check_refused(dir.path(), arguments, parts);
  }
}

TEST_CASE("command line: eval refuses what is missing before it evaluates") {
  const RunDir dir;
  check_refused(dir.path(), {"eval", "recipe.yaml", "--model", "nope"}, {"nope"});
  check_refused(dir.path(), {"eval", "recipe.yaml", "--set", "evaluation.predictions_path=missing/p.json"},
                {"missing/p.json", "No such file"});
  check_refused(dir.path(), {"eval", "recipe.yaml", "--logprobs", "missing/p.jsonl"},
                {"missing/p.jsonl", "No such file"});
  check_refused(dir.path(), {"eval", "recipe.yaml", "--set", "validation_dataset=null"},
                {"'validation_dataset' is missing"});
}

TEST_CASE("command line: commands of one rank refuse to start on several") {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    ::setenv(variable, "4", 1);
    const ProcessResult run = run_process({program(), "grid", "dp=4"});
    ::unsetenv(variable);
    CHECK(run.exit_code == 2);
    CHECK(run.out.empty());
    CHECK(run.err.starts_with("[rank 0] error: started on 4 ranks"));
    CHECK(run.err.find("without mpirun") != std::string::npos);
  }
}

TEST_CASE("command line: --version names the version, its commit and oneDNN") {
  const ProcessResult run = run_process({program(), "--version"});
  CHECK(run.exit_code == 0);
  CHECK(run.out.starts_with(cat("nemocube ", version(), "\n")));
  CHECK(run.out.find("oneDNN") != std::string::npos);
}

TEST_CASE("command line: --help of every subcommand names every option") {
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases{
      {{},
       {"train", "eval", "generate", "forward", "convert", "tokenize", "inspect", "bench", "report", "watch",
        "--version", "--log-level"}},
      {{"train"}, {"recipe", "--set", "--check", "--profile"}},
      {{"report"}, {"runs", "--output"}},
      {{"watch"}, {"run", "--interval", "--once", "--keep", "--steps"}},
      {{"eval"}, {"recipe", "--set", "--model", "--show", "--json", "--logprobs", "--gather"}},
      {{"generate"},
       {"--model", "--tokenizer", "--prompt", "--prompt-file", "--max-new-tokens", "--temperature", "--top-k",
        "--top-p", "--seed", "--dtype", "--ignore-eos", "--special", "--json"}},
      {{"forward"}, {"--model", "--input", "--output", "--grads", "--logprobs", "--set", "--dtype"}},
      {{"convert"}, {"source", "target", "--dtype", "--max-shard-gb"}},
      {{"tokenize"},
       {"--tokenizer", "--input", "--special", "--decode", "--chat", "--chat-template", "--ids", "--mask",
        "--add-generation-prompt", "--set"}},
      {{"inspect"},
       {"checkpoint", "--tensors", "--no-verify", "--model", "--recipe", "--set", "--samples", "--schedule",
        "--json"}},
      {{"bench"}, {"comm", "op", "step"}},
      {{"bench", "comm"},
       {"--grid", "--group", "--collective", "--sizes", "--factor", "--dtype", "--seconds", "--json"}},
      {{"bench", "op"}, {"--op", "--variant", "--dtype", "--repeats", "--small", "--json"}},
      {{"bench", "step"},
       {"--config", "--batch", "--seq", "--steps", "--dtype", "--activation-checkpointing", "--json"}},
  };
  for (const auto& [subcommand, options] : cases) {
    std::vector<std::string> arguments{program()};
    arguments.insert(arguments.end(), subcommand.begin(), subcommand.end());
    arguments.emplace_back("--help");
    const ProcessResult run = run_process(arguments);
    CAPTURE(run.out);
    CHECK(run.exit_code == 0);
    CHECK(run.err.empty());
    for (const std::string& option : options)
      CHECK_MESSAGE(run.out.find(option) != std::string::npos, option);
  }
}

TEST_CASE("command line: paths that the file system refuses are the user's mistake") {
  const ModelDir dir("train20");
  std::filesystem::create_symlink("loop", dir / "loop");
  const std::string name_too_long(300, 'x');
  for (const std::string& path : {std::string("loop"), name_too_long}) {
    CAPTURE(path);
    const std::vector<std::vector<std::string>> cases{
        {"generate", "--model", path, "--prompt", "a"},
        {"tokenize", "--tokenizer", path, "--input", "config.json"},
        {"convert", path, "new"},
        {"convert", ".", path + "/new"},
        {"inspect", "--model", path},
        {"train", path},
        {"train", "recipe.yaml", "--set", "model.pretrained_model_name_or_path=" + path},
        {"train", "recipe.yaml", "--set", "dataset.path=" + path},
        {"train", "recipe.yaml", "--set", "checkpoint.restore_from=" + path},
        {"train", "recipe.yaml", "--set", "checkpoint.checkpoint_dir=" + path}};
    for (const auto& arguments : cases) {
      CAPTURE(arguments[0]);
      CAPTURE(arguments.back());
      check_refused(dir.path(), arguments, {path});
    }
  }
}
