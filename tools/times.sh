#!/bin/sh
# Prints where the builds and tests of BUILD and BUILD-asan spent their time. Usage: times.sh BUILD [CASES]
# CASES: how many of the slowest cases are named (default 40). Times of compiling are of one compiler each, several of which run
# at once; what ccache had took no time. Targets of the Makefile keep what their tests said in BUILD/Testing/TARGET.log.
set -eu
build=$1
cases=${2:-40}
if [ -f "$build/ci_times.txt" ]; then
  echo "steps of .ci/run:"
  sed 's/^/  /' "$build/ci_times.txt"
fi
for folder in "$build" "$build-asan"; do
  [ -f "$folder/.ninja_log" ] || continue
  echo "build of $folder: seconds of compilers, files"
  awk -F '\t' '
    /^#/ { next }
    {
      name = $4
      if (name ~ /units\/.*\.cpp$|version\.cpp$|^\//) next
      if (name ~ /emulator/) group = name ~ /tests\// ? "software GPU, its tests" : "software GPU"
      else if (match(name, /CMakeFiles\/[^\/]*\.dir/)) group = substr(name, RSTART + 11, RLENGTH - 15)
      else group = "linking"
      seconds[name] = ($2 - $1) / 1000
      group_of[name] = group
    }
    END {
      for (name in seconds) { sum[group_of[name]] += seconds[name]; files[group_of[name]]++; all += seconds[name] }
      for (group in sum) printf "  %8.1f %5d  %s\n", sum[group], files[group], group
      printf "  %8.1f        all\n", all
    }' "$folder/.ninja_log" | sort -rn
done
for log in "$build"/Testing/*.log "$build"-asan/Testing/*.log; do
  [ -f "$log" ] || continue
  echo "tests of $log: seconds of each, some at the same time"
  awk '
    /^[0-9]+\/[0-9]+ Test: / { test = $3 }
    /^Test time = / { printf "  %8.1f  %s\n", $4, test }' "$log" | sort -rn
  echo "  the slowest cases of them:"
  awk '
    /^[0-9]+\/[0-9]+ Test: / { test = $3 }
    /^[0-9]+\.[0-9]+ s: / { seconds = $1; sub(/^[0-9.]+ s: /, ""); printf "  %8.1f  %s: %s\n", seconds, test, $0 }' "$log" |
    sort -rn | head -n "$cases"
done
