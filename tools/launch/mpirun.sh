#!/bin/sh
# mpirun.sh [--nodes N] [--hostfile FILE] RECIPE [ARGUMENT..]: trains on N nodes of 8 GPUs under mpirun. N is 1 (default), 9, 33,
# 68 or 100 (tools/launch/topology says what each means); the file has a line for each machine, "node1 slots=8". ARGUMENTs go
# to `nemocube train`. NEMOCUBE names the program, which all machines see; default: build/nemocube. --dry-run prints the command.
set -eu
here=$(dirname "$0")
nodes=1 hosts= dry=
while [ $# -gt 0 ]; do
  case "$1" in
    --nodes) nodes=$2 && shift 2 ;;
    --hostfile) hosts=$2 && shift 2 ;;
    --dry-run) dry=1 && shift ;;
    -*) echo "mpirun.sh: no option $1" >&2 && exit 2 ;;
    *) break ;;
  esac
done
if [ $# -eq 0 ]; then
  echo "mpirun.sh: want a recipe" >&2
  exit 2
fi
if [ "$nodes" != 1 ] && [ -z "$hosts" ]; then
  echo "mpirun.sh: want --hostfile for more than one node" >&2
  exit 2
fi
recipe=$1
shift
settings=$("$here/topology" "$nodes")
ranks=$(printf '%s\n' "$settings" | head -n 1)
for setting in $(printf '%s\n' "$settings" | tail -n +2); do set -- --set "$setting" "$@"; done
# A checkpoint at the end of a job may take minutes: ranks get the time between SIGTERM and SIGKILL.
set -- mpirun -np "$ranks" ${hosts:+--hostfile "$hosts"} --map-by ppr:8:node --bind-to none \
  --mca odls_base_sigkill_timeout 300 "$here/bind.sh" "${NEMOCUBE:-build/nemocube}" train "$recipe" "$@"
if [ -n "$dry" ]; then
  echo "$*"
else
  exec "$@"
fi
