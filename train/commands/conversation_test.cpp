#include "train/commands/conversation.h"

#include <doctest/doctest.h>

#include <sstream>

#include "train/generate/test_speaker.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// What a conversation by a template that counts messages writes.
std::string held(const std::string& lines, bool at_terminal = false) {
  Says model("a green frog");
  ParallelModel parallel(model);
  ChatSettings settings;
  settings.generate.max_new_tokens = 20;
  settings.generate.stop_ids = {eos};
  const ChatTemplate at_most_3("talk",
                               "{% if messages | length > 3 %}{{ raise_exception('too long') }}{% endif %}x");
  ChatSession session(parallel, tokenizer(), at_most_3, settings);
  std::istringstream in(lines);
  std::ostringstream out;
  hold_conversation(in, out, session, at_terminal);
  return out.str();
}

const std::string said = "a green frog\n";

}  // namespace

TEST_CASE("conversation: a line is a message, until the input or the conversation ends") {
  CHECK(held("") == "");
  CHECK(held("Who?\n") == said);
  CHECK(held("Who?\r\n\n  \nAnd?") == said + said);
  CHECK(held("Who?\n/quit\nAnd?\n") == said);
}

TEST_CASE("conversation: /clear begins a new one") {
  CHECK(held("1\n2\n/clear\n3\n4\n") == said + said + said + said);
  CHECK_THROWS_WITH_AS(held("1\n2\n3\n"), doctest::Contains("standard input: line 3: "), Error);
}

TEST_CASE("conversation: at a terminal a mark asks, and a message that cannot be answered is left out") {
  CHECK(held("1\n2\n3\n/clear\n4\n", true) == "> " + said + "> " + said + "> > > " + said + "> \n");
  CHECK(held("/quit\n", true) == "> ");
}

TEST_CASE("conversation: blanks around commands do not matter") {
  CHECK(held("1\n2\n/clear \n3\n\t/quit \n4\n") == said + said + said);
}

TEST_CASE("conversation: a line that is not UTF-8 is an error at its byte") {
  CHECK_THROWS_WITH_AS(held("1\nab\xff"
                            "c\n"),
                       "standard input: line 2: the message: not valid UTF-8 at byte 3", Error);
  CHECK(held("\xff\n1\n", true) == "> > " + said + "> \n");
}

TEST_CASE("conversation: at a terminal a word with a slash gets the list of commands") {
  const std::string list = "commands: /clear begins a new conversation, /quit ends this one\n";
  CHECK(held("/help \n1\n", true) == "> " + list + "> " + said + "> \n");
  CHECK(held("/help me\n/etc/passwd\n", true) == "> " + said + "> " + said + "> \n");
  CHECK(held("/help\n") == said);
}
