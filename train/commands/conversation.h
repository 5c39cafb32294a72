#pragma once
#include <iosfwd>

#include "train/generate/chat_session.h"

namespace nemocube {

/// Reads the user's messages from `in`, a line each, and writes the answers to `out` as they come, until `in`
/// ends. Blank lines are passed over; /quit ends the conversation, /clear begins a new one, blanks around
/// them aside. At a terminal a mark asks for each line, another word with a slash gets the list of commands,
/// and a message that cannot be answered is reported and left out; otherwise such a message is an Error, with
/// its line in front.
void hold_conversation(std::istream& in, std::ostream& out, ChatSession& session, bool at_terminal);

}  // namespace nemocube
