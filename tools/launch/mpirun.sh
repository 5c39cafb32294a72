#!/bin/sh
# Trains on the GPUs of one node or several under mpirun; usage below. SIGTERM, SIGHUP and Ctrl-C to this script end the run with a
# checkpoint, and the script with 143, 129 or 130; else it ends with the exit code of mpirun.
# The message of a rank that failed is the last one: what mpirun says behind it is left out. What it says of its own
# failures and of lost nodes stays. Of a rank that a signal killed, which could say nothing, this script says so.
set -eu
self=mpirun.sh
here=$(dirname -- "$0")
. "$here/common.sh"

usage() {
  cat <<'END'
usage: mpirun.sh [OPTION..] RECIPE [ARGUMENT..]
Starts `nemocube train RECIPE ARGUMENT..` under mpirun, a rank for each GPU, bound to the CPUs beside it. The recipe runs as it
is on any number of nodes.
  --hostfile FILE   a line for each node, with its GPUs: "node1 slots=8". Without it: the nodes of the Slurm allocation in
                    which this script runs, or else this machine
  --per-node N      ranks of each node; default: the slots of the file, the job's GPUs a node, or the GPUs of this machine
  --topology NAME   a published topology (9, 33, 68 or 100; `topology --help`): sets two keys of the recipe, and says so
  --dry-run         print the command and run nothing
  --help            this text
The program is $NEMOCUBE, which all nodes see; default: build/nemocube, or the one beside these scripts, or that of PATH.
To mpirun go variables OMPI_MCA_.. (Open MPI 4) and PRTE_MCA_.. (Open MPI 5).
SIGTERM, SIGHUP and Ctrl-C end the run with a checkpoint. A node that falls off the network ends it within half a minute.
END
}

hosts='' per_node='' topology='' dry=''
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage && exit ;;
    --dry-run) dry=1 && shift ;;
    --hostfile | --per-node | --topology)
      [ $# -gt 1 ] || stop "$1 wants a value"
      case $1 in
        --hostfile) hosts=$2 ;;
        --per-node) per_node=$2 ;;
        --topology) topology=$2 ;;
      esac
      [ -n "$2" ] || stop "$1 wants a value"
      shift 2
      ;;
    -*) stop "no option $1 (--help lists them)" ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || stop "want a recipe (--help says more)"
[ -z "$per_node" ] || is_count "$per_node" || stop "--per-node: want a number from 1 on, got '$per_node'"
recipe=$1
shift
if [ -n "$topology" ]; then
  read_topology "$topology"
  for setting in $settings; do set -- --set "$setting" "$@"; done
fi
find_program
set -- "$here/bind.sh" "$program" train "$recipe" "$@"

# gpus: those that a rank of this machine may use.
gpus() {
  if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
    printf '%s\n' "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | grep -c .
  else
    nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU ' || true
  fi
}

# Where the ranks are: `ranks` of them, in words `found`. The words of mpirun about that come before the program's.
if [ -n "$hosts" ]; then
  [ -r "$hosts" ] || stop "--hostfile: cannot read '$hosts'"
  # The number of nodes, that of their slots, and a node without slots.
  counts=$(awk '
    { sub(/#.*/, ""); gsub(/[ \t]*=[ \t]*/, "=") }
    NF == 0 { next }
    {
      if (!($1 in known)) ++nodes
      known[$1] = 1
      slots = 0
      for (i = 2; i <= NF; i++) if ($i ~ /^slots=[1-9][0-9]*$/) slots = substr($i, 7)
      if (slots == 0) without = $1
      ranks += slots
    }
    END { print nodes + 0, ranks + 0, without }' <"$hosts")
  nodes=${counts%% *} ranks=${counts#* } without=${counts#* * }
  ranks=${ranks%% *}
  [ "$nodes" -gt 0 ] || stop "--hostfile: '$hosts' names no node"
  if [ -n "$per_node" ]; then
    ranks=$((nodes * per_node))
    set -- --map-by "ppr:$per_node:node" "$@"
  else
    [ -z "$without" ] || stop "--hostfile: '$hosts' does not say how many GPUs $without has (\"$without slots=8\"), nor does --per-node"
    set -- --map-by slot "$@"
  fi
  found="'$hosts' has $nodes nodes and $ranks ranks"
  set -- --hostfile "$hosts" "$@"
elif [ -n "${SLURM_JOB_NUM_NODES:-}" ]; then
  per_node=${per_node:-${SLURM_NTASKS_PER_NODE:-$(job_gpus)}}
  is_count "$per_node" || stop "the Slurm job has no GPUs: want --per-node, the ranks of a node"
  ranks=$((SLURM_JOB_NUM_NODES * per_node))
  found="the Slurm job has $SLURM_JOB_NUM_NODES nodes, with $per_node ranks each"
  # Slots are Slurm's tasks, of which a job that asks for GPUs alone has one a node.
  set -- --map-by "ppr:$per_node:node:OVERSUBSCRIBE" "$@"
else
  ranks=${per_node:-$(gpus)}
  is_count "$ranks" || stop "nvidia-smi lists no GPU here: want --per-node, the ranks of this machine, or --hostfile"
  found="this machine has $ranks"
  set -- --host "localhost:$ranks" "$@"
fi
[ -z "$topology" ] || check_topology "$topology" "$ranks" "$found"

# The daemons of mpirun notice after 25 seconds that a node is cut off, in place of eight minutes (docs/parallel.md).
release=$(mpirun --version 2>/dev/null | sed -n '1s/.*Open MPI) \([0-9]*\).*/\1/p')
if [ "${release:-4}" -ge 5 ]; then
  set -- --prtemca oob_tcp_keepalive_time 10 --prtemca oob_tcp_keepalive_intvl 5 \
    --prtemca oob_tcp_keepalive_probes 3 "$@"
else
  set -- --mca oob_tcp_keepalive_time 10 --mca oob_tcp_keepalive_intvl 5 --mca oob_tcp_keepalive_probes 3 "$@"
fi
set -- mpirun -np "$ranks" --bind-to none "$@"
if [ -n "$dry" ]; then
  print_command "$@"
  exit
fi

# without_echoes: passes on what mpirun and ranks write, but for the blocks in which mpirun says once more that a rank has failed.
# Status 3 where a node was lost, after which mpirun of Open MPI 5 ends with 0.
without_echoes() {
  rule=-------------------------------------------------------------------------- held='' dropping='' status=0
  while IFS= read -r line || [ -n "$line" ]; do
    if [ -n "$dropping" ]; then
      [ "$line" != $rule ] || dropping=
      continue
    fi
    if [ "$line" = $rule ]; then  # held back until the next line says whose it is: one may end a block, the next begin one
      [ -z "$held" ] || printf '%s\n' $rule
      held=1
      continue
    fi
    if [ -n "$held" ]; then
      held=
      case $line in
        'MPI_ABORT was invoked on rank'* | 'Primary job  terminated normally, but '* | 'prterun detected that one or more processes '*)
          dropping=1
          continue
          ;;
        *'TE has lost communication with a remote daemon'*) status=3 ;;
      esac
      printf '%s\n' $rule
    fi
    printf '%s\n' "$line"
  done
  [ -z "$held" ] || printf '%s\n' $rule
  return $status
}

# mpirun passes SIGUSR1 on, and a checkpoint may take minutes. After any signal that stops mpirun itself, that of Open MPI 5 gives
# ranks no time. That of Open MPI 4 gives them the time of an option, but also when a node is cut off and ranks wait for it.
# In the background, because the shell handles no signal while it waits for a command in the foreground. In a session of its
# own, so that Ctrl-C reaches this script alone.
job='' asked=''
ask() {  # NUMBER of the signal that this script got
  asked=$1
  [ -z "$job" ] || kill -USR1 "$job" || true
}
trap 'ask 15' TERM
trap 'ask 1' HUP
trap 'ask 2' INT
trap 'ask 3' QUIT
pipe=$(mktemp -u)
mkfifo -m 600 "$pipe"
(trap '' TERM HUP INT QUIT && without_echoes) <"$pipe" >&2 &
filter=$!
exec 3>"$pipe"
rm -f "$pipe"
setsid "$@" 2>&3 3>&- &
job=$!
exec 3>&-
[ -z "$asked" ] || kill -USR1 "$job" || true
ended=0
wait "$job" || ended=$?
while kill -0 "$job" 2>/dev/null; do  # a signal has ended the waiting
  ended=0
  wait "$job" || ended=$?
done
# The rest of what was written; not for ever, because a process that is left somewhere may keep the pipe open.
for _ in 1 2 3 4 5 6 7 8 9 10; do
  kill -0 "$filter" 2>/dev/null || break
  sleep 0.1
done
kill "$filter" 2>/dev/null || true
lost=0
wait "$filter" || lost=$?
if [ "$ended" -eq 0 ] && [ "$lost" -eq 3 ]; then ended=1; fi
# As if the signal that asked for the end had reached the run.
if [ "$ended" -eq 138 ] && [ -n "$asked" ]; then ended=$((128 + asked)); fi
case $ended in
  129 | 130 | 131 | 138 | 141 | 143) ;; # the run has said that it was stopped
  1[3-9][0-9]) echo "mpirun.sh: signal $((ended - 128)) killed a rank; exit code $ended" >&2 ;;
esac
exit "$ended"
