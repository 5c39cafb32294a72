#pragma once

namespace nemocube::testing {

/// For a case that looks at what the whole process has done, such as its address space or its most memory.
/// The case first asks
///     if (!alone()) return;
/// and runs in a process of its own, where no other case ran before: the first call starts the test program
/// with this case only, checks that it passed, and returns false; in that process the call returns true.
bool alone();

}  // namespace nemocube::testing
