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
count=$(printf '%s\n' $headers | wc -l)

# The software GPU: a project of its own, whose headers are found from its own folder and which includes CUDA's. The headers
# of its CUDA programs, which only nvcc compiles, are left out.
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc build-cuda-toolkit/bin/nvcc 2>/dev/null | head -n 1)
if [ -n "$nvcc" ]; then
  packages="-Itools/cuda_emulator -isystem $(dirname "$nvcc")/../include -fno-strict-aliasing -mavx2 -mfma -mf16c"
  headers=$(cd tools/cuda_emulator && find . -name '*.h' ! -path './tests/programs/*' ! -path './tests/faults/*' | sort)
  printf '%s\n' $headers | xargs -P "$jobs" -I{} sh -c "$check" sh {}
  count=$((count + $(printf '%s\n' $headers | wc -l)))
else
  echo "check-headers: tools/cuda_emulator skipped: nvcc was not found (make cuda-toolkit installs one)"
fi
echo "check-headers: $count headers compile alone"
