#pragma once
#include <string>

namespace nemocube {

/// The end of a process that failed: writes "error: TEXT" and, where the process is one of several ranks, ends
/// all of them. Returns `exit_code` when there is nothing else to end.
///
/// Of the ranks of one node only the first to fail writes its message, because a failed collective fails on
/// several ranks at once. Later nodes give earlier ones time to end the job first.
int report_failure(const std::string& text, int exit_code);

}  // namespace nemocube
