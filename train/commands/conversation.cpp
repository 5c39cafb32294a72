#include "train/commands/conversation.h"

#include <algorithm>
#include <istream>
#include <ostream>

#include "core/log.h"
#include "data/datasets/text.h"
#include "train/commands/chat_variables.h"

namespace nemocube {

namespace {

void answer(std::ostream& out, ChatSession& session, const std::string& line) {
  const auto show = [&](std::string_view piece) { out << piece << std::flush; };
  const ChatSession::Answer answer = session.answer(line, show);
  out << '\n' << std::flush;
  if (!answer.whole)
    log_info(
        "the answer ends here because it has as many tokens as --max-new-tokens or the model's context "
        "allow");
}

/// "/word" and nothing else.
bool is_command(std::string_view text) {
  return text.size() > 1 && text[0] == '/' && std::ranges::all_of(text.substr(1), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
         });
}

}  // namespace

void hold_conversation(std::istream& in, std::ostream& out, ChatSession& session, bool at_terminal) {
  std::string line;
  for (std::int64_t number = 1;; ++number) {
    if (at_terminal) out << "> " << std::flush;
    if (!std::getline(in, line)) break;
    if (line.ends_with('\r')) line.pop_back();
    try {
      check_utf8("the message", line);
      const std::string_view command = strip(line);
      if (command == "/quit") return;
      if (command == "/clear")
        session.clear();
      else if (at_terminal && is_command(command))
        out << "commands: /clear begins a new conversation, /quit ends this one\n";
      else if (!command.empty())
        answer(out, session, line);
    } catch (const Error& error) {
      if (!at_terminal) fail("standard input: line ", number, ": ", error.what());
      log_at(LogLevel::error, error.what());
    }
  }
  if (at_terminal) out << '\n';
  require(!in.bad(), "standard input: cannot be read to its end");
}

}  // namespace nemocube
