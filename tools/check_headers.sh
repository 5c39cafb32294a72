#!/bin/sh
# Checks that every header compiles alone, and twice in one file (include guards). Usage: check_headers.sh [jobs]
set -eu
cd "$(dirname "$0")/.."
jobs=${1:-2}
packages=$(pkg-config --cflags libpcre2-8 yaml-cpp 2>/dev/null || true)
export packages
check='header=$1
printf "#include \"%s\"\n#include \"%s\"\n" "$header" "$header" |
  c++ -std=c++20 -Wall -Wextra -Werror -Wno-psabi -fopenmp -fsyntax-only -DNEMOCUBE_SOURCE_DIR=\"src\" -DNEMOCUBE_BINARY=\"bin\" -DNEMOCUBE_MPIRUN=\"bin\" $packages -I. -x c++ - ||
  { echo "check-headers: $header does not compile alone"; exit 255; }'
headers=$(find core ops model parallel data train tests -name '*.h' | sort)
printf '%s\n' $headers | xargs -P "$jobs" -I{} sh -c "$check" sh {}
echo "check-headers: $(printf '%s\n' $headers | wc -l) headers compile alone"
