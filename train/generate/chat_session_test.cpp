#include "train/generate/chat_session.h"

#include <doctest/doctest.h>

#include "train/generate/test_speaker.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// Writes all that the template sees into an error message, once the conversation has this many messages.
std::string shown_at(std::size_t messages) {
  return cat("{% if messages | length == ", messages,
             " %}{{ raise_exception(messages | tojson ~ mark) }}{% endif %}",
             "{% for m in messages %}{{ m.content }} {% endfor %}");
}

ChatSettings settings(std::int64_t most = 20) {
  ChatSettings s;
  s.generate.max_new_tokens = most;
  s.generate.stop_ids = {eos};
  s.system = "Be kind.";
  s.variables["mark"] = "!";
  return s;
}

struct Talk {
  explicit Talk(const std::string& chat_template, ChatSettings s = settings())
      : parallel(model), session(parallel, tokenizer(), ChatTemplate("talk", chat_template), std::move(s)) {}
  std::string answer(const std::string& text) {
    streamed.clear();
    last = session.answer(text, [&](std::string_view piece) { streamed += piece; });
    return last.text;
  }
  Says model{"a green frog"};
  ParallelModel parallel;
  ChatSession session;
  ChatSession::Answer last;
  std::string streamed;
};

}  // namespace

TEST_CASE("chat session: answers follow from the whole conversation, which keeps them") {
  Talk talk(shown_at(4));
  CHECK(talk.answer("Who?") == "a green frog");
  CHECK(talk.streamed == "a green frog");
  CHECK(talk.last.whole);
  CHECK_THROWS_WITH_AS(
      talk.answer("And?"),
      doctest::Contains(
          R"([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Who?"}, )"
          R"({"role": "assistant", "content": "a green frog"}, {"role": "user", "content": "And?"}]!)"),
      Error);
  // The message that failed is not part of the conversation, so the next one is the fourth again.
  CHECK_THROWS_WITH_AS(talk.answer("Once more"), doctest::Contains(R"("content": "Once more"}]!)"), Error);
  talk.session.clear();
  CHECK(talk.answer("Who?") == "a green frog");
}

TEST_CASE("chat session: answers end at max_new_tokens and with the context") {
  Talk cut(shown_at(99), settings(2));
  CHECK(cut.answer("Who?") != "a green frog");
  CHECK_FALSE(cut.last.whole);
  CHECK(tokenizer().encode(cut.last.text, false).size() == 2);

  const std::string words = "{{ 'word ' * 4000 }}{% for m in messages %}{{ m.content }}{% endfor %}";
  Talk full(words);
  const auto length = std::ssize(tokenizer().encode(
      ChatTemplate("t", words).render({.messages = {{{"role", "user"}, {"content", "x"}}}}).text, false));
  const std::int64_t context = full.model.config().max_position_embeddings;
  REQUIRE(length > context);
  CHECK_THROWS_WITH_AS(full.answer("x"),
                       doctest::Contains(cat("the model's context (max_position_embeddings) has ", context,
                                             "; want a shorter message or a new conversation (/clear)")
                                             .c_str()),
                       Error);
}

TEST_CASE("chat session: what is shown has no special tokens unless they are wanted, what is kept has") {
  ChatSettings s = settings(12);
  s.generate.stop_ids = {};  // EOS is then a token like others
  Talk talk(shown_at(4), s);
  CHECK(talk.answer("Who?").find("</s>") != std::string::npos);
  CHECK(talk.streamed.find("</s>") == std::string::npos);
  s.show_special = true;
  Talk loud(shown_at(4), s);
  loud.answer("Who?");
  CHECK(loud.streamed == loud.last.text);
}
