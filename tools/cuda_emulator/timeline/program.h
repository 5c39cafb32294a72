#pragma once

namespace emulator::timeline {

/// Runs a program to its end: its name, found as a shell finds it, its arguments, and a null pointer. SIGTERM and SIGINT that a
/// process sends to this one are sent on to the program, which has those of a terminal already. Both are blocked in this process
/// from the call on, so that what follows is not cut short. Returns the exit status as a shell counts it: 128 + n where signal n
/// ended the program, 126 or 127 (with a message) where it could not be started. Throws std::system_error without a process.
int run_program(char** words);

}  // namespace emulator::timeline
