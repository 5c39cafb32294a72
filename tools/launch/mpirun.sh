#!/bin/sh
# mpirun.sh [--nodes N] [--hostfile FILE] RECIPE [ARGUMENT..]: trains on N nodes of 8 GPUs under mpirun. N is 1 (default), 9, 33,
# 68 or 100 (tools/launch/topology says what each means); the file has a line for each machine, "node1 slots=8". ARGUMENTs go
# to `nemocube train`. NEMOCUBE names the program, which all machines see; default: build/nemocube. --dry-run prints the command.
# mpirun adds no lines of its own, so that the message of a rank that failed is the last one. Of a rank that a signal killed,
# which could say nothing, this script says so. It ends with the exit code of mpirun.
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
set -- mpirun --quiet -np "$ranks" ${hosts:+--hostfile "$hosts"} --map-by ppr:8:node --bind-to none \
  --mca odls_base_sigkill_timeout 300 "$here/bind.sh" "${NEMOCUBE:-build/nemocube}" train "$recipe" "$@"
if [ -n "$dry" ]; then
  echo "$*"
  exit
fi

# In the background, because the shell handles no signal while it waits for a command in the foreground. Ctrl-C reaches
# mpirun by itself.
"$@" &
job=$!
trap : INT
for signal in TERM HUP; do trap "kill -$signal $job" $signal; done
ended=0
wait "$job" || ended=$?
while kill -0 "$job" 2>/dev/null; do  # a signal has ended the waiting
  ended=0
  wait "$job" || ended=$?
done
case $ended in
  129 | 130 | 141 | 143) ;; # the run has said that it was stopped
  1[3-9][0-9]) echo "mpirun.sh: signal $((ended - 128)) killed a rank; exit code $ended" >&2 ;;
esac
exit "$ended"
