#!/bin/sh
# Installs the packages that building and testing need and the machine lacks; with arguments, those packages instead.
# Does nothing when everything is there. On systems other than Debian and Ubuntu it says what to install.
set -eu

packages="${*:-g++ cmake make ninja-build ccache pkg-config git libopenmpi-dev openmpi-bin libdnnl-dev doctest-dev \
nlohmann-json3-dev libyaml-cpp-dev libcli11-dev libpcre2-dev libutf8proc-dev libzstd-dev}"

if command -v dpkg-query >/dev/null 2>&1 && command -v apt-get >/dev/null 2>&1; then
  missing=""
  for package in $packages; do
    status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    [ "$status" = "install ok installed" ] || missing="$missing $package"
  done
  [ -z "$missing" ] && exit 0
  echo "setup: installing$missing"
  as_root=""
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
      echo "setup: not root and no sudo; as root run: apt-get install$missing" >&2
      exit 1
    fi
    as_root="sudo"
  fi
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  # shellcheck disable=SC2086
  if ! { $as_root apt-get update && $as_root env DEBIAN_FRONTEND=noninteractive \
         apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "setup: apt-get failed; wanted:$missing" >&2
    exit 1
  fi
  exit 0
fi

# Not Debian: look for each thing by its command or header and name what is missing.
missing=""
need_command() { command -v "$1" >/dev/null 2>&1 || missing="$missing\n  $2"; }
need_header() {
  echo "#include <$1>" | c++ -std=c++20 -E -x c++ - >/dev/null 2>&1 || missing="$missing\n  $2"
}
if [ $# -gt 0 ]; then
  for tool in "$@"; do need_command "$tool" "$tool"; done
else
  need_command c++ "a C++20 compiler (GCC 12 or later)"
  need_command cmake "CMake 3.22 or later"
  need_command make "GNU make"
  need_command ninja "Ninja"
  need_command pkg-config "pkg-config"
  need_command mpicxx "Open MPI 4 or 5"
  need_header oneapi/dnnl/dnnl.hpp "oneDNN 2.6 or 3.x"
  need_header doctest/doctest.h "doctest 2.4"
  need_header nlohmann/json.hpp "nlohmann-json 3.11"
  need_header yaml-cpp/yaml.h "yaml-cpp 0.7 or later"
  need_header CLI/CLI.hpp "CLI11 2.1 or later"
  need_header pcre2posix.h "PCRE2 10.40 or later"
  need_header utf8proc.h "utf8proc 2.8 or later"
  need_header zstd.h "Zstandard (for the software GPU)"
fi
if [ -n "$missing" ]; then
  printf 'setup: this system has no apt-get; please install:%b\n' "$missing" >&2
  exit 1
fi
