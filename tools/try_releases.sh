#!/usr/bin/env bash
# Builds, trains and tests the committed state of this checkout on bare releases of Debian, as README says to, and writes what it
# saw to docs/releases.md. Each release is a root of its own, made by debootstrap, with its own /proc, /sys, /dev/pts and /dev/shm.
set -euo pipefail
called_from=$PWD
cd "$(dirname "$0")/.."

usage="usage: tools/try_releases.sh [OPTION..] [RELEASE..]
Tries the committed state of this checkout on bare releases of Debian; default: bookworm trixie.
For each: make train, make test, make train-grid (4 ranks), and the libraries with clang 19 where the release has it.
  --folder DIR    roots and logs; default build-releases in the checkout
  --mirror URL    where packages come from; default http://deb.debian.org/debian
  --steps LIST    some of the steps: packages,train,test,ranks,clang; packages is always done
  --ccache DIR    a compiler cache for all roots, which makes the times of building shorter
  --report FILE   where the report goes; default docs/releases.md in the checkout
  --help          this text
Wants root (it mounts file systems and changes roots), 6 GB of disk a release, and about half an hour a release on two idle
cores. Installs debootstrap and git where they are missing.
Exit code: 0 all passed, 1 a step failed, 2 it cannot run here."

folder=build-releases mirror=http://deb.debian.org/debian steps=train,test,ranks,clang ccache='' report=docs/releases.md
releases=()
arguments=("$@")
while [ $# -gt 0 ]; do
  case $1 in
    --help) echo "$usage" && exit 0 ;;
    --folder | --mirror | --steps | --ccache | --report)
      [ $# -gt 1 ] || { echo "try_releases: $1 wants a value" >&2 && exit 2; }
      declare "${1#--}=$2"
      shift 2
      ;;
    -*) echo "try_releases: no option $1 (--help lists them)" >&2 && exit 2 ;;
    *) releases+=("$1") && shift ;;
  esac
done
[ ${#releases[@]} -gt 0 ] || releases=(bookworm trixie)
for step in ${steps//,/ }; do
  case $step in
    packages | train | test | ranks | clang) ;;
    *) echo "try_releases: no step '$step': want some of packages, train, test, ranks, clang" >&2 && exit 2 ;;
  esac
done

cannot() {
  echo "try_releases: cannot run here: $1" >&2
  exit 2
}
[ "$(id -u)" = 0 ] || cannot "not root, and changing roots wants root"
if [ -z "${TRY_RELEASES_INSIDE:-}" ]; then
  # What is mounted below is seen by this script alone and is gone when it ends, however it ends.
  unshare --mount --propagation private true 2>/dev/null || cannot "unshare --mount is not allowed (a container without privileges?)"
  tools/setup.sh debootstrap git || cannot "debootstrap and git are not there and cannot be installed"
  cd "$called_from"
  TRY_RELEASES_INSIDE=1 exec unshare --mount --propagation private "$0" "${arguments[@]}"
fi
commit=$(git rev-parse HEAD) || cannot "this folder is no clone of the repository"
# at PATH: a path that the caller gave, from where the caller is; defaults lie in the checkout.
at() {
  case $1 in
    /* | build-releases | docs/releases.md) echo "$1" ;;
    *) echo "$called_from/$1" ;;
  esac
}
folder=$(at "$folder") report=$(at "$report")
[ -z "$ccache" ] || ccache=$(at "$ccache")
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
[ -z "$ccache" ] || { mkdir -p "$ccache" && ccache=$(cd "$ccache" && pwd); }
[ -z "$(git status --porcelain)" ] || echo "try_releases: uncommitted changes are left out; this tries ${commit:0:7}"

# inside ROOT COMMAND: in a root, with nothing of this machine's environment.
inside() {
  local cache=()
  [ -z "$ccache" ] || cache=(CCACHE_DIR=/ccache)
  chroot "$1" /usr/bin/env -i HOME=/root TERM=dumb LANG=C.UTF-8 "${cache[@]}" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -c "cd /root/nemocube 2>/dev/null; $2" </dev/null
}

# mount_into ROOT: what programs expect of a running machine, and no device but the plain ones.
mount_into() {
  local root=$1 device
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
  done
  mkdir "$root/dev/pts" "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
  mount -t tmpfs tmpfs "$root/dev/shm"
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  if [ -n "$ccache" ]; then
    mkdir -p "$root/ccache"
    mount --bind "$ccache" "$root/ccache"
  fi
}

make_root() {
  local release=$1 root=$2
  if [ ! -e "$root/root/made" ]; then
    rm -rf --one-file-system "$root"
    debootstrap --variant=minbase "$release" "$root" "$mirror" >"$folder/$release.debootstrap.log" 2>&1 ||
      { tail -n 5 "$folder/$release.debootstrap.log" >&2 && cannot "debootstrap of $release failed"; }
    # As every installed machine has it: without, each mpirun waits for a name server.
    printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$(hostname)" >"$root/etc/hosts"
    touch "$root/root/made"
  fi
}

failed=0
rows=()
# row RELEASE STEP RESULT SECONDS WHAT
row() {
  rows+=("| $1 | $2 | $3 | $4 | $5 |")
  echo "try_releases: $1: $2: $3, $4 s${5:+: $5}"
}

# step RELEASE ROOT NAME TITLE COMMAND LAST: runs a command; LAST finds what to report in the log.
step() {
  local release=$1 root=$2 name=$3 title=$4 command=$5 last=$6 log begin seconds code=0 warnings said
  case ",$steps," in *",$name,"*) ;; *) return 0 ;; esac
  log="$folder/$release.$name.log"
  begin=$(date +%s)
  echo "try_releases: $release: $title: begins at $(date +%H:%M), log $log"
  inside "$root" "$command" >"$log" 2>&1 || code=$?
  seconds=$(($(date +%s) - begin))
  warnings=$(grep -cE ':[0-9]+:[0-9]+: warning:' "$log" || true)
  said=$(sed -n "$last" "$log" | tail -n 1 | sed 's/^ *//')
  if [ "$code" = 0 ]; then
    row "$release" "$title" passed "$seconds" "$said; warnings of compilers: $warnings"
  else
    failed=1
    row "$release" "$title" "**failed, exit code $code**" "$seconds" "$said; log $(basename "$log")"
    tail -n 20 "$log" >&2
  fi
}

write_report() {
  [ ${#rows[@]} -gt 0 ] || return 0
  {
    echo "# Releases of Debian"
    echo
    echo "Written by \`tools/try_releases.sh\` on $(date -u +%Y-%m-%d), commit ${commit:0:7}, ${ccache:+with a compiler cache, }on $(nproc) cores."
    echo "Each release is a bare root made by debootstrap, with git and make; every command below installs what it needs, as README says."
    echo
    echo "| release | step | result | seconds | said last |"
    echo "|---|---|---|---|---|"
    printf '%s\n' "${rows[@]}"
  } >"$report"
  echo "try_releases: report in $report"
}
trap write_report EXIT

# What README asks for: a bare Debian with git and make.
for release in "${releases[@]}"; do
  root="$folder/$release"
  make_root "$release" "$root"
  mount_into "$root"
  inside "$root" "apt-get update && apt-get install -y --no-install-recommends git make ca-certificates" \
    >"$folder/$release.packages.log" 2>&1 || { tail -n 5 "$folder/$release.packages.log" >&2 && cannot "apt-get failed in $release"; }
done

for release in "${releases[@]}"; do
  root="$folder/$release"
  rm -rf "$root/root/nemocube"
  git clone -q --no-hardlinks . "$root/root/nemocube"
  git -C "$root/root/nemocube" checkout -q --detach "$commit"
  step "$release" "$root" train "\`make train\`" "make train" '/[Ee]xact match/p'
  step "$release" "$root" test "\`make test\`" "make test" '/passed, [0-9]* failed/p'
  step "$release" "$root" ranks "\`make train-grid\` (4 ranks)" "make train-grid" '/[Ee]xact match/p'
  if inside "$root" "apt-cache show clang-19" >/dev/null 2>&1; then
    step "$release" "$root" clang "libraries and program by clang 19, warnings are errors" \
      "tools/setup.sh clang-19 libomp-19-dev && make BUILD=build-clang \
       CMAKE_FLAGS='-DCMAKE_CXX_COMPILER=clang++-19 -DNEMOCUBE_WERROR=ON' && build-clang/nemocube --version" '/^nemocube /p'
  fi
  versions=$(inside "$root" "tools/setup.sh >/dev/null 2>&1
    cat /etc/debian_version; g++ -dumpfullversion; cmake --version | sed -n 's/cmake version //p'
    mpirun --version | sed -n '1s/.* //p'
    for package in libdnnl-dev libcli11-dev libyaml-cpp-dev nlohmann-json3-dev doctest-dev libpcre2-dev libutf8proc-dev; do
      dpkg-query -W -f '\${Version}\n' \$package
    done") || continue
  mapfile -t has <<<"$versions"
  rows+=("| $release | has | Debian ${has[0]} | | GCC ${has[1]}, CMake ${has[2]}, Open MPI ${has[3]}, oneDNN ${has[4]}, CLI11 ${has[5]}, yaml-cpp ${has[6]}, nlohmann-json ${has[7]}, doctest ${has[8]}, PCRE2 ${has[9]}, utf8proc ${has[10]} |")
done
[ "$failed" = 0 ] || echo "try_releases: a step failed: its log is in $folder" >&2
exit "$failed"
