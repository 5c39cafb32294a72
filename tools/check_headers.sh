#!/bin/sh
# Checks that every header compiles alone and has an include guard. Usage: check_headers.sh [--jobs N] [--rest]
# --rest: without the headers that some source file includes first. A build that compiles each source file alone, such as
# that of `make asan`, has compiled these, though with most headers of the standard library precompiled: only the whole
# check finds a header that lacks one of those.
set -eu
cd "$(dirname "$0")/.."
jobs=2 rest=
while [ $# -gt 0 ]; do
  case $1 in
    --jobs) jobs=$2 && shift 2 ;;
    --rest) rest=1 && shift ;;
    *) echo "usage: tools/check_headers.sh [--jobs N] [--rest]" >&2 && exit 2 ;;
  esac
done
packages=$(pkg-config --cflags libpcre2-8 yaml-cpp 2>/dev/null || true)
export packages
check='header=$1
printf "#include \"%s\"\n" "$header" |
  c++ -std=c++20 -Wall -Wextra -Werror -Wno-psabi -fopenmp -fsyntax-only $packages -I. -x c++ - ||
  { echo "check-headers: $header does not compile alone"; exit 255; }'
unguarded=$(find core ops model parallel data train tests tools -name '*.h' -exec grep -L '^#pragma once$' {} +)
[ -z "$unguarded" ] || { echo "check-headers: without #pragma once:" $unguarded; exit 1; }

# The headers that the standard input names, one a line, and that no file among the arguments includes first.
without_first() {
  awk '/^#include/ { split($0, part, "\""); if (part[2] != "") print part[2]; nextfile }' "$@" | sort -u >"$first"
  sort | comm -23 - "$first"
}
first=$(mktemp)
trap 'rm -f "$first"' EXIT

headers=$(find core ops model parallel data train tests -name '*.h' | sort)
if [ "$rest" ]; then
  # Not in the build of `make asan`: the program alone, and files that are loaded at run time.
  sources=$(find core ops model parallel data train tests -name '*.cpp' ! -name main.cpp ! -name mpi_transport.cpp \
    ! -name '*_bench.cpp')
  headers=$(printf '%s\n' $headers | without_first $sources)
fi
printf '%s\n' $headers | xargs -P "$jobs" -I{} sh -c "$check" sh {}
count=$(printf '%s\n' $headers | wc -l)

# The software GPU: a project of its own, whose headers are found from its own folder and which includes CUDA's. The headers
# of its CUDA programs, which only nvcc compiles, are left out.
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc build-cuda-toolkit/bin/nvcc 2>/dev/null | head -n 1)
if [ -n "$nvcc" ]; then
  packages="-Itools/cuda_emulator -isystem $(dirname "$nvcc")/../include -fno-strict-aliasing -mavx2 -mfma -mf16c"
  headers=$(cd tools/cuda_emulator && find . -name '*.h' ! -path './tests/programs/*' ! -path './tests/faults/*' |
    sed 's|^\./||' | sort)
  if [ "$rest" ]; then  # all builds compile its sources several at once, its tests alone
    headers=$(printf '%s\n' $headers | without_first $(find tools/cuda_emulator -name '*_test.cpp'))
  fi
  printf '%s\n' $headers | xargs -P "$jobs" -I{} sh -c "$check" sh {}
  count=$((count + $(printf '%s\n' $headers | wc -l)))
else
  echo "check-headers: tools/cuda_emulator skipped: nvcc was not found (make cuda-toolkit installs one)"
fi
echo "check-headers: $count headers compile alone"
