#pragma once
#include <string>
#include <string_view>

/// Text that the program did not write (a value of a recipe, a name in a file) as part of a
/// message. The result is valid UTF-8 of one line without terminal commands: control
/// characters are written \n, \t, \r or \u001b, and so are characters that break lines or turn
/// the direction of writing; bytes that are no UTF-8 are written \xff. Text longer than 200
/// bytes is cut there, and its length is given.
namespace nemocube {

std::string excerpt(std::string_view text);  ///< text, or: text... (1048576 bytes)
std::string quote(std::string_view text);    ///< 'text', or: 'text...' (1048576 bytes)
/// The same for a whole message, which keeps its line ends, and is cut after 64 KiB.
/// Results of excerpt() and quote() stay as they are. Of a path of more than 1000 bytes
/// both ends are kept, and its length is given.
std::string printable(std::string_view message);
/// printable() for a message of this program, which indents its further lines: a line end that no
/// two spaces follow belongs to a path or the like, and is written \n. A path can therefore not
/// begin a line that looks like another message.
std::string printable_message(std::string_view message);

}  // namespace nemocube
