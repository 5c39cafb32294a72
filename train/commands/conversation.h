#pragma once
#include <iosfwd>

#include "train/generate/chat_session.h"

namespace nemocube {

/// Reads the user's messages from `in`, a line each, and writes the answers to `out` as they come, until `in`
/// ends. Blank lines are skipped; /quit ends the conversation, /clear begins a new one; blanks around these
/// commands do not count. At a terminal a mark asks for each line, an unknown command gets the list of
/// commands, and a message that cannot be answered is reported and left out. Elsewhere such a message is an
/// Error that begins with its line.
void hold_conversation(std::istream& in, std::ostream& out, ChatSession& session, bool at_terminal);

}  // namespace nemocube
