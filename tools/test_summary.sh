#!/bin/sh
# Sums up what the test programs of one ctest run said, and what they skipped. Usage: test_summary.sh LastTest.log
set -eu
sed -n 's/.*MESSAGE: \(.*did not run\|.*was not tried\)/skipped: \1/p' "$1"
sed -n '/^skipped: tests on cuda/p' "$1" | sort -u
awk -F '[:|]' '
  /^\[doctest\] test cases:/ { programs++; cases += $3; failed += $4 }
  /^\[doctest\] assertions:/ { assertions += $2 }
  END {
    printf "tests: %d cases passed, %d failed, %d assertions in %d programs\n", cases, failed, assertions, programs
    if (programs == 0) exit 1
  }' "$1"
