# What mpirun.sh and slurm.sbatch share: functions for sh. `self` is the name of the script, `here` its folder.

# stop TEXT: ends the script with a message.
stop() {
  printf '%s: %s\n' "$self" "$1" >&2
  exit 2
}

# is_count TEXT: whether it is a whole number from 1 on.
is_count() {
  case $1 in
    '' | 0* | *[!0-9]*) return 1 ;;
  esac
}

# job_gpus: the GPUs of a node of the Slurm job, nothing where it has none. In the shell of salloc Slurm says what was asked for,
# as "8", "h100:8" or a list of such; elsewhere what a node has.
job_gpus() {
  if [ -n "${SLURM_GPUS_ON_NODE:-}" ]; then
    printf '%s\n' "$SLURM_GPUS_ON_NODE"
  elif [ -n "${SLURM_GPUS_PER_NODE:-}" ]; then
    printf '%s\n' "$SLURM_GPUS_PER_NODE" | tr ',' '\n' | sed 's/.*://' | awk '{ sum += $1 } END { print sum }'
  fi
}

# print_command WORD..: one line for a shell, which has these words whatever is in them.
print_command() {
  space=
  for word; do
    printf '%s' "$space"
    space=' '
    case $word in
      '' | *[!ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:=,@%+-]*)
        printf "'"
        printf '%s' "$word" | sed "s/'/'\\\\''/g"
        printf "'"
        ;;
      *) printf '%s' "$word" ;;
    esac
  done
  printf '\n'
}

# find_program: sets `program`: $NEMOCUBE, or that of the working directory, of this checkout, of this installation, of PATH.
find_program() {
  for program in "${NEMOCUBE:-}" build/nemocube "$here/../../build/nemocube" "$here/../../../../bin/nemocube"; do
    if [ -n "$program" ] && { [ "$program" = "${NEMOCUBE:-}" ] || [ -x "$program" ]; }; then return; fi
  done
  program=$(command -v nemocube) || stop "no program nemocube found: build it (make), or name it in the variable NEMOCUBE"
}

# read_topology NAME: sets `settings`, two overrides, and `wanted`, the ranks that the published topology has. It says so.
read_topology() {
  settings=$("$here/topology" "$1") || exit 2
  wanted=$(printf '%s\n' "$settings" | sed -n 1p)
  settings=$(printf '%s\n' "$settings" | sed 1d)
  echo "$self: topology $1, $wanted nodes of 8 GPUs, sets" $settings >&2
  wanted=$((wanted * 8))
}

# check_topology NAME RANKS FOUND: FOUND says where the ranks come from.
check_topology() {
  [ "$wanted" -eq "$2" ] || stop "topology $1 wants $((wanted / 8)) nodes of 8 GPUs, $wanted ranks; $3"
}
