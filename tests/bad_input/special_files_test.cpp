#include <sys/stat.h>

#include "tests/bad_input/refused.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
namespace fs = std::filesystem;

/// Puts a FIFO that nobody writes to, and then a device without end, in the place of `file`: each must be refused
/// at once. A program that opens the FIFO as it would open a file waits here until the test's time is over.
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
