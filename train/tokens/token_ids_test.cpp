#include "train/tokens/token_ids.h"

#include <doctest/doctest.h>

#include "data/json/test_dir.h"
#include "tests/support/message_of.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("token ids: a token beyond the model's vocabulary is named with the file that adds it") {
  const TestDir dir;
  const std::filesystem::path samples = source_path("data/samples/tokenizer");
  std::filesystem::copy(samples / "tokenizer.json", dir / "tokenizer.json");
  CHECK_NOTHROW(check_vocabulary(Tokenizer::load(dir.path()), 2000));
  CHECK(message_of([&] { check_vocabulary(Tokenizer::load(dir.path()), 1900); }) ==
        "the tokenizer has token ids up to 1999, the model's vocab_size is 1900; want the tokenizer the "
        "model was made with");
  spit(dir / "tokenizer_config.json", R"({"pad_token": "[PAD]"})");
  const Tokenizer tokenizer = Tokenizer::load(dir.path());
  CHECK(tokenizer.pad_id() == 2000);
  CHECK_NOTHROW(check_vocabulary(tokenizer, 2001));
  CHECK(message_of([&] { check_vocabulary(tokenizer, 2000); }) ==
        cat((dir / "tokenizer_config.json").string(),
            ": pad_token adds the token '[PAD]' to the tokenizer with the id 2000, and the model's "
            "vocab_size is 2000; want a "
            "token that the model has, or a model with more embeddings"));
}
