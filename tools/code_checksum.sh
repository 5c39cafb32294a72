#!/bin/sh
# Prints a checksum of C++ files and their names, which come one a line. Comments and empty lines do not count.
# Usage: find FOLDER -name '*.h' | tools/code_checksum.sh
set -eu
LC_ALL=C sort | xargs awk '
  FNR == 1 { print FILENAME }
  { sub(/(^|[[:space:]]+)\/\/.*$/, "") }
  /./ { print }' | sha256sum | cut -d ' ' -f 1
