#pragma once
#include <span>
#include <string>
#include <vector>

namespace nemocube {

using CommandWords = std::vector<std::string>;

/// `text` as one word of a shell's command line.
std::string shell_word(const std::string& text);
/// The words as a command line of a shell.
std::string shell_line(const CommandWords& words);

/// The command that goes on with a run that has been interrupted, for a shell. `program`: the words that
/// start the run on one rank; `more`: words that the continuation needs after these; `ancestors`: the command
/// lines of the processes that led to this one, nearest first.
///
/// For several ranks the result is the launcher's own command line (mpirun, mpiexec, srun, under any
/// path), with its options and programs. Where no ancestor is a launcher, as on a node that the
/// launcher reached through a daemon, or where `more` cannot follow the launcher's program, the text
/// is "start it again as before, on N ranks".
std::string resume_command(const CommandWords& program, const CommandWords& more, int ranks,
                           std::span<const CommandWords> ancestors);

/// The word that starts this program again from a shell in the same directory: the word of its call where
/// that is a path, else "nemocube".
std::string program_word();

/// The command lines of this process's ancestors, nearest first, as far as they can be read.
std::vector<CommandWords> command_lines_of_ancestors();

}  // namespace nemocube
