#include "core/sanitizers.h"
#include "tests/bad_input/refused.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("bad recipes: a wrong override is refused with key, wish and fact") {
  const ModelDir dir("train20");
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases{
      {"step_schedulr.max_steps=1", {"'step_schedulr'", "nearest", "'step_scheduler'"}},
      {"step_scheduler.max_step=1", {"'max_step'", "nearest", "'max_steps'"}},
      {"]=1", {"unknown key ']'", "known here", "optimizer", "step_scheduler"}},
      {"optimizer.lr=abc", {"optimizer.lr", "number", "'abc'"}},
      {"optimizer.lr=.nan", {"optimizer.lr", "'.nan'"}},
      {"optimizer.betas=[0.9, 1.5]", {"optimizer.betas", "'1.5'"}},
      {"step_scheduler.max_steps=1.5", {"max_steps", "positive integer", "'1.5'"}},
      {"step_scheduler.max_steps=99999999999999999999", {"max_steps", "99999999999999999999"}},
      {"step_scheduler.global_batch_size=5", {"global_batch_size = 5", "local_batch_size = 2", "4"}},
      {"step_scheduler.local_batch_size=8", {"local_batch_size = 8"}},
      {"dataloader.batch_size=7", {"dataloader.batch_size: is 7", "local_batch_size = 2"}},
      {"distributed.tp_size=2", {"world_size (1)", "tp_size", "start 2 ranks"}},
      {"distributed.cp_size=0", {"cp_size", "'0'"}},
      {"kernels.nonsense=plain", {"'nonsense'", "attention"}},
      {"kernels.attention=magic", {"kernels.attention", "'magic'", "tiled"}},
      {"optimizer._target_=torch.optim.Lion", {"'Lion'", "AdamW"}},
      {"dataset._target_=foo.bar", {"'bar'", "squad"}},
      {"loss_fn._target_=x.y", {"'y'", "MaskedCrossEntropy"}},
      {"lr_scheduler.lr_decay_style=cos", {"lr_decay_style", "cosine", "'cos'"}},
      {"lr_scheduler.lr_warmup_steps=100", {"lr_warmup_steps = 100", "lr_decay_steps = 20"}},
      {"model.torch_dtype=int8", {"torch_dtype", "bf16", "'int8'"}},
      {"model.pretrained_model_name_or_path=./nope", {"'./nope' does not exist in /", "working directory"}},
      {"optimizer.eps=0", {"optimizer.eps", "from 1e-30 to 1", "'0'"}},
      {"optimizer.lr=1e300", {"optimizer.lr", "from 0 to 100", "'1e300'"}},
      {"model.pretrained_model_name_or_path=/nope", {"'/nope' does not exist"}},
      {"model.pretrained_model_name_or_path=nvidia/Nemotron", {"nvidia/Nemotron", "nothing is downloaded"}},
      {"checkpoint.restore_from=nope", {"restore_from", "'nope'"}},
      {"checkpoint.best_metric_key=foo", {"best_metric_key", "validation_dataset_foo"}},
      {"dataset={_target_: squad, dataset_name: x.json, tokenizer: nope}",
       {"dataset.tokenizer", "tokenizer.json", "'nope' does not exist"}},
      {"dataset.path=nope.safetensors",
       {"'nope.safetensors' does not exist in /", "relative paths", "working directory"}},
      {"dataset.path=model.safetensors", {"model.safetensors", "'input_ids'"}},
      {"optimizer.param_group_overrides=[{pattern: \"([\"}]", {"param_group_overrides", "'(['"}},
      {"optimizer.param_group_overrides=[{pattern: layernorm}]",
       {"param_group_overrides", "'layernorm'", "backbone.embeddings.weight"}},
      {"loss_fn.ignore_index=0", {"loss_fn.ignore_index", "-100", "'0'"}},
      {"step_scheduler.preemption_signal=KILL", {"preemption_signal", "'KILL'"}},
      {"checkpoint.checkpoint_dir=''", {"checkpoint_dir", "is empty"}},
      {"packed_sequence.packed_sequence_size=9223372036854775807", {"packed_sequence_size", "2147483647"}},
      {"dataset={_target_: mock, seq_length: 4000000000000000000}", {"seq_length", "1 to 2147483647"}},
      {"step_scheduler=3", {"step_scheduler", "section"}},
      {"optimizer=null", {"'optimizer' is missing"}},
      {"x=,", {"--set x=,", "not YAML"}},
      {"x=a\n---\nb", {"second YAML document"}},
      {"noequals", {"noequals", "key.path=value"}},
      {"a..b=3", {"a..b", "empty part"}},
      {"step_scheduler.max_steps=[1", {"not YAML"}},
  };
  for (const auto& [override, parts] : cases) {
    CAPTURE(override);
    check_refused(dir.path(), train_with({override}), parts);
  }
}

TEST_CASE("bad recipes: files that are no recipe, or half of one, are refused") {
  const ModelDir dir("train20");
  const std::string good = slurp(dir / "recipe.yaml");
  std::string bomb = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (char c = 'b'; c < 'n'; ++c) {
    const std::string last = cat('*', static_cast<char>(c - 1));
    bomb += cat(c, ": &", c, " [");
    for (int i = 0; i < 9; ++i) bomb += (i ? ", " : "") + last;
    bomb += "]\n";
  }
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases{
      {"a:\n\tb: 3\n", {"recipe.yaml:2", "not YAML"}},
      {"a: [1,\nb: 2\n", {"not YAML"}},
      {"", {"missing"}},
      {"hello", {"want a recipe"}},
      {"- 1\n", {"want a recipe"}},
      {std::string(20'000, '['), {"recipe.yaml:1", "deeper than 64 levels"}},
      {",", {"recipe.yaml:1: not YAML", "','"}},
      {"a: &a [*a]\n", {"recipe.yaml:1"}},
      {bomb, {"values"}},
      {good + "\nseed: 3\n", {"'seed' occurs twice"}},
      {good + "---\nseed: 3\n", {"a second YAML document"}},
  };
  for (const auto& [text, parts] : cases) {
    CAPTURE(parts.front());
    spit(dir / "recipe.yaml", text);
    check_refused(dir.path(), train_with({}), parts);
  }
  for (const std::string section : {"model", "dataset", "optimizer"}) {
    CAPTURE(section);
    const auto at = good.find("\n" + section + ":\n");
    REQUIRE(at != std::string::npos);
    const auto end = good.find("\n\n", at);
    spit(dir / "recipe.yaml", good.substr(0, at + 1) + (end == std::string::npos ? "" : good.substr(end)));
    check_refused(dir.path(), train_with({}), {"'" + section + "' is missing"});
  }
  check_refused(dir.path(), {"train", "nope.yaml"}, {"nope.yaml"});
  check_refused(dir.path(), {"train", "."}, {"is a directory"});
}

TEST_CASE("train --check: finds what training would refuse, and writes nothing") {
  const ModelDir dir("train20");
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases{
      {"lr_scheduler.lr_decay_style=WSD", {"wsd_decay_steps"}},
      {"lr_scheduler.min_lr=1", {"min_lr"}},
      {"lr_scheduler.lr_warmup_steps=100", {"lr_warmup_steps = 100"}},
      {"optimizer.param_group_overrides=[{pattern: \"(\"}]", {"param_group_overrides", "'('"}},
      {"optimizer.param_group_overrides=[{pattern: \"^model\"}]", {"^model", "backbone."}},
      {"dataset.path=nope.safetensors", {"nope.safetensors"}},
      {cat("dataset={_target_: squad, dataset_name: squad, tokenizer: ", sample_tokenizer().string(), "}"),
       {"'squad'", "ownload"}},
      {"validation_dataset={_target_: tokens, path: gone.safetensors}", {"gone.safetensors"}},
      {"checkpoint.restore_from=nope", {"restore_from", "'nope'"}},
      {"model.pretrained_model_name_or_path=checkpoints", {"checkpoints"}},
      {"checkpoint.checkpoint_dir=config.json", {"checkpoint_dir", "not a directory"}},
  };
  for (const auto& [override, parts] : cases) {
    CAPTURE(override);
    check_refused(dir.path(), {"train", "--check", "recipe.yaml", "--set", override}, parts);
  }
  // All of them at once, those of the data and of the run's directory.
  check_refused(
      dir.path(),
      {"train", "--check", "recipe.yaml", "--set", "optimizer.param_group_overrides=[{pattern: \"(\"}]",
       "--set", "checkpoint.restore_from=nope", "--set", "checkpoint.checkpoint_dir=config.json/x"},
      {"3 problems", "'('", "'config.json/x'", "'nope'"});
  const auto before = snapshot(dir.path());
  const ProcessResult good = run_process({program(), "train", "--check", "recipe.yaml"}, dir.path());
  CHECK(good.exit_code == 0);
  CHECK(good.err.find("training needs about ") != std::string::npos);
  CHECK(good.err.find("warning: ") == std::string::npos);
  CHECK(snapshot(dir.path()) == before);
  std::filesystem::remove(dir / "model.safetensors");
  check_refused(dir.path(), {"train", "--check", "recipe.yaml"}, {"model.safetensors"});
}

TEST_CASE("train --check --ranks: for another number of ranks than this one") {
  const ModelDir dir("train20");
  const auto check = [&](const std::string& ranks, const std::vector<std::string>& overrides) {
    std::vector<std::string> command{program(), "train", "--check", "recipe.yaml", "--ranks", ranks};
    for (const std::string& o : overrides) command.insert(command.end(), {"--set", o});
    return run_process(command, dir.path());
  };
  const ProcessResult two = check("2", {});
  CAPTURE(two.err);
  CHECK(two.exit_code == 0);
  CHECK(two.err.find("2 ranks: fsdp2 (ZeRO-3), dp_shard 2 x dp_replicate 1") != std::string::npos);
  CHECK(two.err.find(" of memory on each rank: weights ") != std::string::npos);
  CHECK(two.err.find("gathered weights ") != std::string::npos);
  check_refused(dir.path(), {"train", "--check", "recipe.yaml", "--ranks", "3"},
                {"global_batch_size = 4", "3 data-parallel ranks"});
  check_refused(dir.path(), {"train", "--check", "recipe.yaml", "--set", "distributed.dp_size=4"},
                {"distributed.dp_size is 4, but 1 rank was started"});
  check_refused(dir.path(), {"train", "--check", "recipe.yaml", "--ranks", "0"}, {"--ranks", "0"});
  check_refused(dir.path(), {"train", "recipe.yaml", "--ranks", "2"}, {"--ranks", "--check"});
  check_refused(dir.path(),
                {"train", "--check", "recipe.yaml", "--set", "distributed.mp_policy={param_dtype: bfloat16}"},
                {"distributed.mp_policy.param_dtype is bf16", "the weights are f32", "want"});
  check_refused(dir.path(),
                {"train", "--check", "recipe.yaml", "--set", "distributed.mp_policy={reduce_dtype: float64}"},
                {"distributed.mp_policy.reduce_dtype is f64", "summed in f32", "want"});
}

TEST_CASE("train --check: a model that does not fit the machine's memory gets a warning") {
  const RunDir dir;
  std::string config = slurp(dir / "model" / "config.json");
  const std::string small = "\"vocab_size\": 2048";
  config.replace(config.find(small), small.size(), "\"vocab_size\": 16000000");
  spit(dir / "model" / "config.json", config);
  const auto before = snapshot(dir.path());
  if (has_address_sanitizer()) {
    MESSAGE("skipped: AddressSanitizer needs more address space than the limit leaves");
    return;
  }
  const ProcessResult run = run_process(
      {"sh", "-c", "ulimit -v 4000000; exec \"$0\" train --check recipe.yaml", program()}, dir.path());
  CAPTURE(run.err);
  CHECK(run.exit_code == 0);
  // Two matrices of 16e6 x 16 f32 numbers: weights, gradients and two moments.
  CHECK(run.err.find("weights 2.05 GB, gradients 2.05 GB, moments 4.10 GB, activations about ") !=
        std::string::npos);
  CHECK(run.err.find(", libraries, data and threads about ") != std::string::npos);
  CHECK(run.err.find("warning: that is more than there is: 4.10 GB (") != std::string::npos);
  CHECK(snapshot(dir.path()) == before);
}

TEST_CASE("train --check: all problems of a recipe at once, with lines and nearest keys") {
  const ModelDir dir("train20");
  const std::string good = slurp(dir / "recipe.yaml");
  spit(dir / "recipe.yaml",
       good + "\nwandb: {project: p}\nevaluation:\n  max_new_token: 3\n  limit_samples: x\n");
  const auto line = 3 + std::count(good.begin(), good.end(), '\n');
  const std::vector<std::string> parts{
      "recipe.yaml: 3 problems", cat("recipe.yaml:", line + 1, ": evaluation.max_new_token: unknown key"),
      "nearest known key is 'max_new_tokens'",
      cat("recipe.yaml:", line + 2, ": evaluation.limit_samples: want"),
      "--set optimizer.lr: want a number from 0 to 100, found 'fast'"};
  check_refused(dir.path(), {"train", "--check", "recipe.yaml", "--optimizer.lr", "fast"}, parts);
  check_refused(dir.path(), {"train", "recipe.yaml", "--set", "optimizer.lr=fast"}, parts);
}

TEST_CASE("train: overrides as in AutoModel, a short list of keys without effect, and trackers named apart") {
  const ModelDir dir("train20");
  spit(dir / "recipe.yaml",
       slurp(dir / "recipe.yaml") + "\nwandb: {project: p}\ncompile: {enabled: false, mode: default}\n");
  const ProcessResult run = run_process(
      {program(), "train", "--check", "recipe.yaml", "--optimizer.lr", "3e-4", "--recipe=x"}, dir.path());
  CAPTURE(run.err);
  CHECK(run.exit_code == 2);
  const ProcessResult good = run_process(
      {program(), "train", "--check", "recipe.yaml", "--optimizer.lr", "3e-4", "--seed=7"}, dir.path());
  CAPTURE(good.err);
  CHECK(good.exit_code == 0);
  CHECK(good.out.find("lr: 3.0e-04\n") != std::string::npos);
  CHECK(good.out.find("seed: 7\n") != std::string::npos);
  CHECK(good.err.find("warning: recipe.yaml: wandb: nothing is sent to this tracker") != std::string::npos);
  CHECK(good.err.find("without effect in this build: compile (2 keys)") != std::string::npos);
}
