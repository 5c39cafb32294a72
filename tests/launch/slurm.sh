#!/bin/bash
# slurm.sh BUILD: tries tools/launch under a Slurm of its own on this machine: one node with 8 made-up GPUs. 8 ranks train, SIGTERM
# saves, the job is queued again and resumes, and its log goes on; srun without --mpi=pmix is refused; mpirun.sh uses an allocation.
# Wants root and the packages slurm-wlm and munge, which it does not install: where they are missing it says so and ends with 77.
# All daemons are this script's own, with files and ports of their own, and end with it. About a minute.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
build=$(cd "${1:?want the build folder}" && pwd)

skip() {
  echo "slurm.sh: skipped: $1"
  exit 77
}
[ "$(id -u)" = 0 ] || skip "not root, and slurmd wants root"
for command in slurmctld slurmd munged mungekey sbatch srun salloc scontrol; do
  command -v $command >/dev/null || skip "no command $command (packages slurm-wlm, slurmd, slurmctld, munge)"
done

# A short path, because those of sockets are limited.
folder=$(mktemp -d /tmp/slurm.XXXXXX)
chmod 755 "$folder"
finish() {
  status=$?
  [ "$status" = 0 ] || [ "$status" = 77 ] || tail -n 30 "$folder"/*.log "$folder"/work/*.log 2>/dev/null || true
  for daemon in slurmd slurmctld munged; do
    [ -s "$folder/$daemon.pid" ] || continue
    pid=$(cat "$folder/$daemon.pid")
    kill "$pid" 2>/dev/null || true
    for _ in $(seq 100); do
      case $(ps -o stat= -p "$pid") in '' | Z*) break ;; esac
      sleep 0.1
    done
  done
  rm -rf "$folder"
  exit "$status"
}
trap finish EXIT

host=$(hostname -s)
port=$((20000 + $$ % 10000))
mkdir "$folder"/{state,spool}
for i in 0 1 2 3 4 5 6 7; do mknod "$folder/gpu$i" c 1 3; done
cat >"$folder/slurm.conf" <<END
ClusterName=nemocube
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
SlurmctldPort=$port
SlurmdPort=$((port + 1))
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 Gres=gpu:8
PartitionName=all Nodes=ALL Default=YES State=UP
END
echo "NodeName=$host Name=gpu File=$folder/gpu[0-7]" >"$folder/gres.conf"
echo "CgroupPlugin=autodetect" >"$folder/cgroup.conf"
export SLURM_CONF=$folder/slurm.conf
srun --mpi=list 2>&1 | grep -qw pmix || skip "this Slurm has no plugin for PMIx"
mungekey --create --keyfile="$folder/munge.key"
munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
  --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"
slurmctld
slurmd

fail() {
  echo "slurm.sh: $1" >&2
  exit 1
}
# within SECONDS WHAT COMMAND..: until the command succeeds.
within() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [ $SECONDS -lt $end ] || fail "$what: not in time"
    sleep 0.2
  done
}
idle() { [ "$(sinfo --noheader --format=%t)" = idle ]; }
steps() { [ "$({ wc -l <"$folder/work/run/training.jsonl"; } 2>/dev/null || echo 0)" -ge "$1" ]; }
job_has() { scontrol show job "$job" | grep -qw -- "$1"; }
within 30 "the node is idle" idle

. "$here/small_run.sh"
write_run "$folder/work" "$repository"
cd "$folder/work"
export NEMOCUBE=$build/nemocube OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_tcp_if_include=lo
job=$(sbatch --parsable --output=job.log "it's \$a repository/tools/launch/slurm.sbatch" recipe.yaml)
within 60 "the job trains" steps 2
scancel --signal=TERM "$job"
within 60 "the job is queued again" job_has Restarts=1
grep -q "stopped by signal 15" job.log || fail "the log does not say why the run ended"
saved=$(ls -d run/epoch_*)
trained=$(wc -l <run/training.jsonl)
within 60 "the job resumes" job_has JobState=RUNNING
within 60 "the job trains on" steps $((trained + 2))
grep -q "stopped by signal 15" job.log || fail "the log has begun anew"
grep -q "resum" job.log || fail "the log does not say that the run resumed"
scancel "$job"
within 60 "the job ends" idle
# Steps are counted from 0, each once.
[ "$(sed 's/.*"step": *\([0-9]*\).*/\1/' run/training.jsonl)" = "$(seq 0 $(($(wc -l <run/training.jsonl) - 1)))" ] ||
  fail "steps are missing or there twice"
echo "slurm.sh: 8 ranks trained, saved $saved on SIGTERM after $trained steps, and went on to $(wc -l <run/training.jsonl)"

ended=0
timeout 60 srun --ntasks=2 "$NEMOCUBE" train recipe.yaml --set checkpoint.checkpoint_dir=apart >apart.log 2>&1 || ended=$?
[ "$ended" = 2 ] || fail "srun without PMIx: exit code $ended"
grep -q "srun has started 2 processes without MPI" apart.log || fail "srun without PMIx: not refused"
[ ! -e apart ] || fail "srun without PMIx: something was written"
echo "slurm.sh: $(grep -m 1 error: apart.log)"

salloc --quiet --gpus-per-node=4 --exclusive "it's \$a repository/tools/launch/mpirun.sh" recipe.yaml \
  --set checkpoint.checkpoint_dir=allocation --set step_scheduler.max_steps=1 >allocation.log 2>&1 || fail "mpirun.sh in an allocation"
grep -q "4 ranks" allocation.log || fail "mpirun.sh in an allocation: not 4 ranks"
echo "slurm.sh: mpirun.sh started 4 ranks in an allocation"
