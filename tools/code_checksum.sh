#!/bin/sh
# A checksum of C++ files with their names, comments and empty lines apart. Usage: find FOLDER -name '*.h' | code_checksum.sh
set -eu
LC_ALL=C sort | xargs awk '
  FNR == 1 { print FILENAME }
  { sub(/(^|[[:space:]]+)\/\/.*$/, "") }
  /./ { print }' | sha256sum | cut -d ' ' -f 1
