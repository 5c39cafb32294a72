#!/bin/sh
# mpirun.sh [--nodes N] [--hostfile FILE] RECIPE [ARGUMENT..]: trains on N nodes of 8 GPUs under mpirun. N is 1 (default), 9, 33,
# 68 or 100 (tools/launch/topology says what each means); the file has a line for each machine, "node1 slots=8". ARGUMENTs go
# to `nemocube train`. NEMOCUBE names the program, which all machines see; default: build/nemocube. --dry-run prints the command.
# SIGTERM, SIGHUP and Ctrl-C to this script end the run with a checkpoint. It ends with the exit code of mpirun.
# mpirun of Open MPI 4 adds no lines of its own, so that the message of a rank that failed is the last one; that of Open MPI 5
# cannot be kept from it. Of a rank that a signal killed, which could say nothing, this script says so.
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
# A checkpoint at the end of a job may take minutes. mpirun of Open MPI 4 gives ranks this time between SIGTERM and SIGKILL.
# That of Open MPI 5 gives them no time after any signal that stops it, but passes on SIGUSR1, which asks for the same.
release=$(mpirun --version 2>/dev/null | sed -n '1s/.*Open MPI) \([0-9]*\).*/\1/p')
if [ "${release:-4}" -ge 5 ]; then
  of_release= stop=USR1
else
  of_release="--quiet --mca odls_base_sigkill_timeout 300" stop=
fi
# shellcheck disable=SC2086
set -- mpirun -np "$ranks" ${hosts:+--hostfile "$hosts"} --map-by ppr:8:node --bind-to none $of_release \
  "$here/bind.sh" "${NEMOCUBE:-build/nemocube}" train "$recipe" "$@"
if [ -n "$dry" ]; then
  echo "$*"
  exit
fi

# In the background, because the shell handles no signal while it waits for a command in the foreground. In a session of its
# own, so that Ctrl-C reaches this script alone.
job= asked=
pass() {  # SIGNAL: to mpirun, or later, when it has started
  asked=${stop:-$1}
  [ -z "$job" ] || kill "-$asked" "$job" || true
}
for signal in TERM HUP INT QUIT; do trap "pass $signal" $signal; done
setsid "$@" &
job=$!
[ -z "$asked" ] || kill "-$asked" "$job" || true
ended=0
wait "$job" || ended=$?
while kill -0 "$job" 2>/dev/null; do  # a signal has ended the waiting
  ended=0
  wait "$job" || ended=$?
done
case $ended in
  129 | 130 | 138 | 141 | 143) ;; # the run has said that it was stopped
  1[3-9][0-9]) echo "mpirun.sh: signal $((ended - 128)) killed a rank; exit code $ended" >&2 ;;
esac
exit "$ended"
