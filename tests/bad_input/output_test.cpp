#include <nlohmann/json.hpp>

#include "tests/bad_input/refused.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
namespace fs = std::filesystem;

const std::vector<std::string> saving{"checkpoint.enabled=true", "step_scheduler.ckpt_every_steps=2"};

std::vector<std::string> train_to(int steps) {
  std::vector<std::string> overrides = saving;
  overrides.push_back(cat("step_scheduler.max_steps=", steps));
  return train_with(overrides);
}

/// Runs the program with files limited to `blocks` of 512 or 1024 bytes, as the shell counts.
ProcessResult run_limited(int blocks, const std::vector<std::string>& arguments, const fs::path& dir) {
  std::vector<std::string> command{"sh", "-c", cat("ulimit -f ", blocks, "; exec \"$0\" \"$@\""), program()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  wait_politely();
  return run_process(command, dir);
}
}  // namespace

TEST_CASE("bad outputs: forward refuses a place before it computes") {
  const ModelDir dir;
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases{
      {"missing/out.safetensors", {"missing/out.safetensors", "No such file"}},
      {"config.json/out.safetensors", {"config.json/out.safetensors", "Not a directory"}},
      {".", {"not a regular file"}},
      {"", {"name of the file to write is empty"}},
      {"/proc/nemocube.safetensors", {"/proc/nemocube.safetensors"}},
  };
  for (const auto& [output, parts] : cases) {
    CAPTURE(output);
    std::vector<std::string> arguments = forward_here;
    arguments.back() = output;
    check_refused(dir.path(), arguments, parts);
  }
}

// A rename over a device would replace it for everybody. A pipe stands for the device here.
TEST_CASE("bad outputs: what is no regular file is never replaced") {
  const ModelDir dir;
  REQUIRE(run_process({"mkfifo", "pipe"}, dir.path()).exit_code == 0);
  std::vector<std::string> arguments = forward_here;
  arguments.back() = "pipe";
  check_refused(dir.path(), arguments, {"pipe", "not a regular file"});
  CHECK(fs::is_fifo(dir / "pipe"));
}

TEST_CASE("bad outputs: convert refuses targets that are taken or cannot be made") {
  const ModelDir dir;
  fs::create_directory(dir / "taken");
  spit(dir / "taken" / "file", "precious");
  for (const auto& [target, part] :
       std::vector<std::pair<std::string, std::string>>{{"taken", "not empty"},
                                                        {".", "not empty"},
                                                        {"config.json", "config.json"},
                                                        {"config.json/below", "config.json/below"},
                                                        {"", "empty"},
                                                        {"/proc/nemocube", "/proc/nemocube"}}) {
    CAPTURE(target);
    check_refused(dir.path(), {"convert", ".", target}, {part});
  }
  check_refused(dir.path(), {"convert", "nope", "new"}, {"nope"});
  check_refused(dir.path(), {"convert", ".", "new", "--dtype", "i64"}, {"--dtype", "'i64'"});
  for (const char* size : {"0", "-1", "nan"})
    check_refused(dir.path(), {"convert", ".", "new", "--max-shard-gb", size}, {"--max-shard-gb", size});
}

TEST_CASE("bad outputs: a checkpoint directory that is no directory is refused before the first step") {
  const ModelDir dir("train20");
  spit(dir / "checkpoints", "a file");
  check_refused(dir.path(), train_with({}), {"checkpoints", "Not a directory"});
  check_refused(dir.path(), train_with({"checkpoint.checkpoint_dir=new/run", "checkpoint.restore_from=nope"}),
                {"restore_from", "nope"});
  CHECK_FALSE(fs::exists(dir / "new"));
  check_refused(dir.path(), train_with({"checkpoint.checkpoint_dir=model.safetensors/x"}),
                {"model.safetensors/x"});
  check_refused(dir.path(), train_with({"checkpoint.checkpoint_dir=/proc/nope/x"}), {"/proc/nope/x"});
}

TEST_CASE("full disk: a log that cannot grow stops the run with a message") {
  const ModelDir dir("train20");
  fs::create_directory(dir / "checkpoints");
  fs::create_symlink("/dev/full", dir / "checkpoints" / "training.jsonl");
  wait_politely();
  check_message(run_process({program(), "train", "recipe.yaml"}, dir.path()),
                {"training.jsonl", "No space left"});
  CHECK(fs::is_symlink(dir / "checkpoints" / "training.jsonl"));
}

TEST_CASE("full disk: standard output that cannot be written is an error") {
  const TestDir dir;
  spit(dir / "in.txt", "hello\n");
  const std::string model = golden("train20").string(), recipe = golden("train20") / "recipe.yaml";
  for (const std::string& arguments :
       {cat("tokenize --tokenizer ", sample_tokenizer().string(), " --input in.txt"),
        cat("inspect --model ", model), cat("inspect --recipe ", recipe, " --schedule"),
        cat("train --check ", recipe, " --set model.pretrained_model_name_or_path=", model,
            " --set dataset.path=", model, "/tokens.safetensors"),
        std::string("--version")}) {
    CAPTURE(arguments);
    check_message(
        run_process({"sh", "-c", cat("exec \"$0\" ", arguments, " > /dev/full"), program()}, dir.path()),
        {"standard output"});
  }
}

TEST_CASE("closed standard streams: no message lands in a file of the run") {
  const ModelDir dir("train20");
  wait_politely();
  const ProcessResult run = run_process(
      {"sh", "-c", "exec \"$0\" train recipe.yaml --set step_scheduler.max_steps=2 2>&-", program()},
      dir.path());
  CHECK(run.exit_code == 0);
  const std::string log = slurp(dir / "checkpoints" / "training.jsonl");
  CHECK(log.starts_with("{\"step\": 0,"));
  CHECK(log.find("checkpoint") == std::string::npos);
}

TEST_CASE("bad outputs: files of the user in the directory of the run are not taken for its logs") {
  const ModelDir dir("train20");
  fs::create_directory(dir / "checkpoints");
  spit(dir / "checkpoints" / "training.jsonl", "{\"messages\": []}\n");
  check_refused(dir.path(), train_with({}), {"training.jsonl", "no log of a training run", "checkpoint_dir"});
}

TEST_CASE("file size limit: forward and convert give a message, keep the old file and leave nothing behind") {
  const ModelDir dir;
  spit(dir / "out.safetensors", "precious");
  const auto before = snapshot(dir.path());
  std::vector<std::string> arguments = forward_here;
  arguments.emplace_back("--grads");
  check_message(run_limited(8, arguments, dir.path()), {"out.safetensors", "File too large"});
  CHECK(snapshot(dir.path()) == before);
  check_message(run_limited(8, {"convert", ".", "new"}, dir.path()), {"new", "File too large"});
  CHECK(snapshot(dir.path()) == before);
}

TEST_CASE(
    "file size limit: a checkpoint that fails leaves the one before it whole, and the run goes on from it") {
  const ModelDir dir("train20");
  std::vector<std::string> first = train_to(2);
  first.insert(first.begin(), program());
  wait_politely();
  REQUIRE(run_process(first, dir.path()).exit_code == 0);
  const auto before = snapshot(dir / "checkpoints" / "epoch_0_step_1");

  check_message(run_limited(100, train_to(4), dir.path()), {"epoch_0_step_3", "File too large"});
  CHECK(names_in(dir / "checkpoints") ==
        std::vector<std::string>{"LATEST", "epoch_0_step_1", "history.jsonl", "training.jsonl"});
  CHECK(fs::read_symlink(dir / "checkpoints" / "LATEST") == "epoch_0_step_1");
  CHECK(snapshot(dir / "checkpoints" / "epoch_0_step_1") == before);

  std::vector<std::string> again = train_to(4);
  again.insert(again.begin(), program());
  const ProcessResult run = run_process(again, dir.path());
  CAPTURE(run.err);
  CHECK(run.exit_code == 0);
  CHECK(run.err.find("resumed from checkpoints/epoch_0_step_1, which has 2 steps done") != std::string::npos);
  CHECK(fs::exists(dir / "checkpoints" / "epoch_0_step_3" / "state.json"));
}

TEST_CASE("damaged checkpoints: refused with the file, and nothing is overwritten") {
  const ModelDir dir("train20");
  std::vector<std::string> first = train_to(2);
  first.insert(first.begin(), program());
  wait_politely();
  REQUIRE(run_process(first, dir.path()).exit_code == 0);
  const fs::path checkpoint = dir / "checkpoints" / "epoch_0_step_1", state = checkpoint / "state.json";
  const fs::path optimizer = checkpoint / "optim" / "optimizer.safetensors";
  const fs::path weights = checkpoint / "model" / "model.safetensors";
  const auto refuse = [&](const fs::path& file, const std::string& text,
                          const std::vector<std::string>& parts) {
    CAPTURE(parts.back());
    const std::string good = slurp(file);
    spit(file, text);
    check_refused(dir.path(), train_to(4), parts);
    spit(file, good);
  };
  const auto damaged = [&](const fs::path& file) {
    std::string text = slurp(file);
    text[text.size() / 2] ^= 1;
    return text;
  };
  for (const fs::path& file : {state, optimizer, weights, checkpoint / "model" / "config.json",
                               checkpoint / "config.yaml", checkpoint / "checksums.json"})
    refuse(file, damaged(file),
           {file.filename() == "checksums.json" ? "epoch_0_step_1" : file.filename().string()});
  refuse(weights, slurp(weights).substr(0, 5000), {"model.safetensors", "damaged", "5000 bytes"});
  // Older programs wrote no checksums. Without them every reader looks for itself.
  fs::remove(checkpoint / "checksums.json");
  refuse(state, slurp(state), {"checksums.json", "missing"});
  Json older = read_json_file(state);
  older.erase("origin");
  spit(state, dump_json(older));
  const auto with = [&](const char* key, const Json& value) {
    Json json = read_json_file(state);
    (json["loader"].contains(key) ? json["loader"] : json)[key] = value;
    return dump_json(json);
  };
  refuse(state, "x", {"state.json", "not valid JSON"});
  refuse(state, "{}", {"state.json", "'step'"});
  refuse(state, with("step", -5), {"state.json", "'step'", "-5"});
  refuse(state, with("optimizer_steps", -3), {"state.json", "'optimizer_steps'", "-3"});
  refuse(state, with("next_index", 7777), {"7777", "80"});
  refuse(state, with("rows", 9), {"9 rows", "80"});
  refuse(optimizer, slurp(optimizer).substr(0, 5000), {"optimizer.safetensors", "cut off?"});
  refuse(weights, slurp(weights).substr(0, 5000), {"model.safetensors", "cut off?"});
  check_refused(dir.path(),
                train_with({saving[0], "optimizer._target_=torch.optim.SGD", "optimizer.momentum=0.9"}),
                {"/optim: ", "missing in the checkpoint: momentum.", "not in the run: exp_avg."});
  fs::remove(state);
  check_refused(dir.path(), train_to(4), {"state.json", "No such file"});
}
