#!/bin/sh
# clang-tidy with the checks of .clang-tidy. Usage: tidy.sh BUILD_FOLDER JOBS [SOURCE...]; default: all sources.
# The build folder only needs to be configured: its compile commands say how each file is compiled.
set -eu
cd "$(dirname "$0")/.."
build=$1
jobs=$2
shift 2
[ $# -gt 0 ] || set -- $(find core ops model parallel data train tests -name '*.cpp' | sort)
commands=$(mktemp -d)
trap 'rm -rf "$commands"' EXIT
# An option that only GCC knows.
sed 's/ -fno-thread-jumps//' "$build/compile_commands.json" > "$commands/compile_commands.json"
# -Wno-error: the build reports warnings, with GCC; clang's, also those about libstdc++, are no findings.
# No analyzer in tests: the analyzer spends its time on the paths through doctest's macros, and a failing test shows itself.
# max-nodes: a tenth of the paths per function that the analyzer tries by default, in a seventh of the time.
printf '%s\n' "$@" | sed 's/_test\.cpp$/& --checks=-clang-analyzer-*/' |
  xargs -P "$jobs" -L 1 clang-tidy-19 --quiet -p "$commands" --extra-arg=-Wno-error \
  --extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang --extra-arg=max-nodes=20000 2>"$commands/log" ||
  { grep -v 'warnings\? generated' "$commands/log" >&2 || true; echo "tidy: see above"; exit 1; }
echo "tidy: $# files without findings"
