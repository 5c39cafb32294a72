#include <sys/stat.h>

#include <array>
#include <chrono>
#include <thread>

#include "tests/bad_input/refused.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
namespace fs = std::filesystem;

/// Puts a FIFO that nobody writes to, and then a device without end, in the place of `file`: each must be
/// refused at once. A program that opens the FIFO as it would open a file waits here until the test's time is
/// over.
void check_special(const fs::path& dir, const std::string& file, const std::vector<std::string>& arguments) {
  CAPTURE(file);
  fs::remove(dir / file);
  REQUIRE(::mkfifo((dir / file).c_str(), 0600) == 0);
  check_refused(dir, arguments, {file, "want a regular file", "FIFO"});
  fs::remove(dir / file);
  fs::create_symlink("/dev/zero", dir / file);
  check_refused(dir, arguments, {file, "want a regular file", "device"});
  fs::remove(dir / file);
}
}  // namespace

TEST_CASE("FIFOs and devices in the place of a model's files are refused at once") {
  const ModelDir dir("bf16_stored");
  check_special(dir.path(), "model-00001-of-00002.safetensors", forward_here);
  check_special(dir.path(), "model.safetensors.index.json", forward_here);
  const ModelDir other;
  check_special(other.path(), "model.safetensors", {"convert", ".", "converted"});
  check_special(other.path(), "config.json", {"inspect", "--model", "."});
}

TEST_CASE("FIFOs and devices in the place of a recipe and of any file of a checkpoint are refused at once") {
  const RunDir dir;
  const std::vector<std::string> words = train_with({"step_scheduler.max_steps=1", "lr_scheduler=null"});
  spit(dir / "kept.yaml", slurp(dir / "recipe.yaml"));
  check_special(dir.path(), "recipe.yaml", words);
  spit(dir / "recipe.yaml", slurp(dir / "kept.yaml"));
  REQUIRE(dir.train({"step_scheduler.max_steps=1", "lr_scheduler=null"}).exit_code == 0);
  const fs::path saved = fs::canonical(dir / "straight" / "LATEST"), copy = dir / "copy";
  fs::copy(saved, copy, fs::copy_options::recursive);
  std::vector<std::string> files{"model/stray", "optim/stray"};
  for (const auto& entry : fs::recursive_directory_iterator(copy))
    if (entry.is_regular_file()) files.push_back(entry.path().lexically_relative(copy));
  for (const std::string& file : files) {
    CAPTURE(file);
    fs::remove(saved / file);
    REQUIRE(::mkfifo((saved / file).c_str(), 0600) == 0);
    check_message(dir.train({"step_scheduler.max_steps=2", "lr_scheduler=null"}),
                  {file, "want a regular file", "FIFO"});
    fs::remove(saved / file);
    if (fs::exists(copy / file)) fs::copy_file(copy / file, saved / file);
  }
  // Logs, to which a run appends.
  for (const char* log : {"training.jsonl", "validation.jsonl"}) {
    fs::remove(dir / "straight" / log);
    REQUIRE(::mkfifo((dir / "straight" / log).c_str(), 0600) == 0);
    check_message(dir.train({"step_scheduler.max_steps=2", "lr_scheduler=null"}), {log, "is in the way"});
    fs::remove(dir / "straight" / log);
  }
}

TEST_CASE("links in a circle and over-long paths are named, and very long ones shortened") {
  const ModelDir dir("train20");
  fs::create_symlink("circle", dir / "circle");
  std::string deep = "far";
  for (int i = 0; i < 30; ++i) deep += "/" + std::string(200, 'a');
  const std::string wide(300, 'b');
  for (const auto& [path, named, why] :
       std::vector<std::array<std::string, 3>>{{"circle", "circle: ", "Too many levels of symbolic links"},
                                               {wide, wide + ": ", "File name too long"},
                                               {deep, "aaa (6033 bytes): ", "File name too long"}}) {
    const std::vector<std::vector<std::string>> commands{
        {"train", "--check", path},
        {"inspect", "--model", path},
        {"generate", "--prompt", "x", "--model", path},
        {"train", "--check", "recipe.yaml", "--set", "dataset.path=" + path}};
    for (const auto& command : commands) {
      CAPTURE(command[0]);
      CAPTURE(command[1]);
      wait_politely();
      std::vector<std::string> words{program()};
      words.insert(words.end(), command.begin(), command.end());
      const ProcessResult run = run_process(words, dir.path());
      check_message(run, {named, why});
      CHECK(run.err.size() < 2000);
    }
  }
}

TEST_CASE("FIFOs and devices in the place of data and tokenizers are refused at once") {
  const ModelDir dir("train20");
  const std::string tokenizer =
      cat("tokenizer={pretrained_model_name_or_path: ", sample_tokenizer().string(), "}");
  check_special(dir.path(), "tokens.safetensors", {"train", "--check", "recipe.yaml"});
  for (const char* name : {"data.jsonl", "data.json"})
    check_special(
        dir.path(), name,
        train_with({cat("dataset={_target_: messages, path_or_dataset_id: ", name, "}"), tokenizer}));
  const TestDir other;
  spit(other / "input.txt", "hello");
  check_special(other.path(), "tokenizer.json", {"tokenize", "--tokenizer", ".", "--input", "input.txt"});
}

TEST_CASE("a token file that is cut off while a run reads it ends the run with a message") {
  const ModelDir dir("train20");
  wait_politely();
  std::vector<std::string> words = train_with(
      {"step_scheduler.max_steps=100000000", "step_scheduler.num_epochs=100000000", "lr_scheduler=null"});
  words.insert(words.begin(), program());
  Process run(words, dir.path());
  const fs::path log = dir / "checkpoints" / "training.jsonl";
  while (is_alive(run.pid()) && !(fs::exists(log) && fs::file_size(log) > 0))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  fs::resize_file(dir / "tokens.safetensors", 4096);
  check_message(run.wait(),
                {"tokens.safetensors: has no bytes from ", "it had 25784 bytes when it was opened"});
}
