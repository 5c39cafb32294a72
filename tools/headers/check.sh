#!/bin/sh
# Checks that every header compiles alone and has an include guard. Usage: check.sh [--jobs N] [--changed]
# --changed: only those of folders whose headers, or the headers of a folder to the left, have changed since all of them passed
# (checked.txt, which this script writes when all have).
set -eu
cd "$(dirname "$0")/../.."
jobs=2 changed=
while [ $# -gt 0 ]; do
  case $1 in
    --jobs) jobs=$2 && shift 2 ;;
    --changed) changed=1 && shift ;;
    *) echo "usage: tools/headers/check.sh [--jobs N] [--changed]" >&2 && exit 2 ;;
  esac
done
flags=$(pkg-config --cflags libpcre2-8 yaml-cpp 2>/dev/null || true)
export flags
check='header=$1
printf "#include \"%s\"\n" "$header" |
  c++ -std=c++20 -Wall -Wextra -Werror -Wno-psabi -fopenmp -fsyntax-only $flags -I. -x c++ - ||
  { echo "check-headers: $header does not compile alone"; exit 255; }'
unguarded=$(find core ops model parallel data train tests tools -name '*.h' -exec grep -L '^#pragma once$' {} +)
[ -z "$unguarded" ] || { echo "check-headers: without #pragma once:" $unguarded; exit 1; }

list=tools/headers/checked.txt
changed_folders=$(tools/headers/changed.sh $list)
checking=$(mktemp)  # what passes is what the headers are now
trap 'rm -f "$checking"' EXIT
tools/headers/changed.sh "$checking" --write
# wanted FOLDER: whether the headers of FOLDER are to be looked at. Folders come from left to right.
behind_change=
wanted() {
  [ -n "$changed" ] || return 0
  for with_change in $changed_folders; do
    if [ "$with_change" = "$1" ]; then behind_change=1; fi
  done
  [ -n "$behind_change" ]
}
count=0
check_all() {
  [ -n "$1" ] || return 0
  printf '%s\n' $1 | xargs -P "$jobs" -I{} sh -c "$check" sh {}
  count=$((count + $(printf '%s\n' $1 | wc -l)))
}

headers=
for folder in core ops model parallel data train tests; do
  if wanted $folder; then headers="$headers $(find $folder -name '*.h' | sort)"; fi
done
check_all "$headers"

# The software GPU: a project of its own, whose headers are found from its own folder and which includes CUDA's. The headers
# of its CUDA programs, which only nvcc compiles, are left out.
behind_change=
if wanted tools/cuda_emulator; then
  nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc build-cuda-toolkit/bin/nvcc 2>/dev/null | head -n 1)
  if [ -z "$nvcc" ]; then
    echo "check-headers: tools/cuda_emulator skipped: nvcc was not found (make cuda-toolkit installs one)"
    echo "check-headers: $count headers compile alone"
    exit
  fi
  flags="-Itools/cuda_emulator -isystem $(dirname "$nvcc")/../include -fno-strict-aliasing -mavx2 -mfma -mf16c"
  check_all "$(cd tools/cuda_emulator && find . -name '*.h' ! -path './tests/programs/*' ! -path './tests/faults/*' |
    sed 's|^\./||' | sort)"
fi
if [ $count = 0 ]; then
  echo "check-headers: no header has changed since all compiled alone"
else
  cat "$checking" >$list
  echo "check-headers: $count headers compile alone; $list says which do, and belongs in the commit"
fi
