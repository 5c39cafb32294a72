#include "data/chat/end_of_turn.h"

#include <doctest/doctest.h>

#include <vector>

#include "data/json/test_dir.h"
#include "tests/support/paths.h"

using namespace nemocube;

namespace {

using Id = std::optional<std::int64_t>;

TEST_CASE("end of turn: the template's own, where the tokens that stop are not among what it writes") {
  const testing::TestDir dir;
  std::filesystem::copy(testing::source_dir() / "tests/goldens/tokenizer/split/tokenizer.json", dir.path());
  testing::spit(
      dir / "tokenizer_config.json",
      R"({"additional_special_tokens": ["<turn>"], "added_tokens_decoder": {"1500": {"content": "</answer>"}}})");
  const Tokenizer tokenizer = Tokenizer::load(dir.path());
  const auto ending_in = [&](const std::string& end, std::vector<std::int64_t> stops = {2}) {
    const std::string source =
        "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}" + end +
        "{% endfor %}";
    return end_of_turn(ChatTemplate("test", source, {{"bos_token", "<s>"}}), tokenizer, stops);
  };
  const Id im_end = tokenizer.token_to_id("<|im_end|>"), turn = tokenizer.token_to_id("<turn>");
  REQUIRE(tokenizer.token_to_id("</s>") == 2);
  CHECK(ending_in("<|im_end|>\n") == im_end);
  CHECK(ending_in("<|im_end|>\n", {2, *im_end}) == Id());
  CHECK(ending_in("</s>\n") == Id());
  CHECK(ending_in("<|im_end|></s>") == Id());  // the model stops at the second
  CHECK(ending_in("</answer><|im_end|>\n") == im_end);
  CHECK(ending_in("<|im_end|></answer>") == im_end);
  CHECK(ending_in("</answer>\n") == tokenizer.token_to_id("</answer>"));
  CHECK(ending_in("<turn>") == turn);
  CHECK(ending_in("\n") == Id());
  CHECK(ending_in("{{ raise_exception('no') }}") == Id());
  CHECK(ending_in("{% if loop.last %}{% generation %}<|im_end|>{% endgeneration %}{% endif %}") == im_end);
}

}  // namespace
