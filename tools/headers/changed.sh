#!/bin/sh
# Which folders have other headers than a file says, one a line, comments apart. Usage: changed.sh FILE [--write]
# FILE has a line for each folder, with a checksum of its headers, and one for the compiler, without which all folders have
# changed. --write: writes FILE as the headers are now.
set -eu
cd "$(dirname "$0")/../.."
file=$1
now() {
  echo "compiler $("${CXX:-c++}" --version | head -n 1)"
  for folder in core ops model parallel data train tests tools/cuda_emulator; do
    echo "$folder $(find "$folder" -name '*.h' -type f | tools/code_checksum.sh)"
  done
}
if [ "${2:-}" = --write ]; then
  now >"$file.new"
  mv "$file.new" "$file"
  exit
fi
[ -f "$file" ] || file=/dev/null
now | awk '
  FILENAME != "-" { known[$0] = 1; next }
  $1 == "compiler" { new_compiler = !($0 in known); next }
  new_compiler || !($0 in known) { print $1 }' "$file" -
