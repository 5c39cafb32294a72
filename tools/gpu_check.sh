#!/bin/bash
# What a machine with a GPU can say about this checkout, in ten minutes at most.
set -u
usage() {
  cat <<'END'
tools/gpu_check.sh [--list] [--limit SECONDS] [--parts "NAME..."] [FOLDER]

Builds, then runs tests and benchmarks on the GPU, part by part, in the order of their value: what has not run on a GPU yet, the
benchmarks, then all other tests. Each part has a time limit of its own, so that a slow part costs no other part. What a part says
goes to FOLDER/NAME.txt (FOLDER: gpu_check), how it ended to FOLDER/summary.txt. tools/gpu_report.sh FOLDER makes docs/measured.md of
these files.

  --list            print the parts with their limits and commands, and run nothing
  --limit SECONDS   at most so long for any part but the build
  --parts "NAME..." these parts only

BUILD names the build folder (default: build). Exit status: 0 where every part passed, 1 where one failed or ran out of its time,
2 for a wrong option.
END
}
cd "$(dirname "$0")/.." || exit 2
build=${BUILD:-build}
list=false limit=600 parts="" folder=gpu_check
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage && exit ;;
    --list) list=true ;;
    --limit | --parts)
      [ $# -ge 2 ] || { echo "gpu_check: $1 wants a value" >&2 && exit 2; }
      [ "$1" = --limit ] && limit=$2 || parts=$2
      shift
      ;;
    -*) echo "gpu_check: no option $1; --help lists the options" >&2 && exit 2 ;;
    *) folder=$1 ;;
  esac
  shift
done
case $limit in
  '' | *[!0-9]* | 0) echo "gpu_check: --limit $limit: want a number of seconds from 1" >&2 && exit 2 ;;
esac

if [ "$parts" ]; then
  known=$(tools/gpu_check.sh --list | awk '{ printf " %s", $1 }')
  for name in $parts; do
    [[ "$known " == *" $name "* ]] || { echo "gpu_check: no part $name; the parts are$known" >&2 && exit 2; }
  done
fi

failed="" passed=0
# part NAME SECONDS COMMAND: one part. COMMAND is a line for the shell.
part() {
  local name=$1 seconds=$2 command=$3 begin=$SECONDS status end
  if [ "$parts" ] && [[ " $parts " != *" $name "* ]]; then return; fi
  [ "$name" = build ] || [ "$seconds" -le "$limit" ] || seconds=$limit
  if $list; then
    printf '%-12s %4d s  %s\n' "$name" "$seconds" "$command"
    return
  fi
  timeout --kill-after=2 "$seconds" bash -c "$command" >"$folder/$name.txt" 2>&1
  status=$?
  case $status in
    0) end=passed passed=$((passed + 1)) ;;
    124 | 137) end="ran out of its $seconds s" ;;
    *) end="failed with exit status $status" ;;
  esac
  [ "$status" -eq 0 ] || failed="$failed $name"
  echo "$name: $end after $((SECONDS - begin)) s: $command" | tee -a "$folder/summary.txt"
}
# tests NAME SECONDS PROGRAM CASES [PROGRAM CASES ...]: cases of the tests on the device, by the names of doctest.
tests() {
  local name=$1 seconds=$2 command=""
  shift 2
  while [ $# -gt 0 ]; do
    command="$command${command:+ && }$build/$1 --test-suite=cuda --duration=true --test-case='$2'"
    shift 2
  done
  part "$name" "$seconds" "$command"
}

if ! $list; then
  mkdir -p "$folder" || exit 2
  : >"$folder/summary.txt"
fi
export NEMOCUBE_TEST_CUDA=required BUILD="$build"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# A rank's part of Nemotron 3 Nano with experts on eight ranks: blocks of full width, 1.6 billion parameters, 36 GB on the device.
slice="--config $folder/slice --device cuda --dtype bf16 --batch 1 --seq 8192 --steps 6"
if ! $list; then
  mkdir -p "$folder/slice"
  sed 's/"hybrid_override_pattern": *"[^"]*"/"hybrid_override_pattern": "MEM*EMEM*E"/
    s/"n_routed_experts": *[0-9]*/"n_routed_experts": 16/' \
    configs/nemotron_3_nano/config.json >"$folder/slice/config.json"
fi

part machine 10 'date -u +%F; nvidia-smi && nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader && nvcc --version && git describe --always --dirty'
part build 180 "make build && cmake --build $build -j \$(nproc) --target test_core test_ops test_model test_train test_comm test_tests && $build/nemocube --version"

# What had not run on a GPU when docs/measured.md was written. Weights of quantised files are unpacked on the CPU: no kernel does.
tests scan 30 test_ops 'ssd_scan*'
tests adapters 40 test_ops 'lora*,grouped lora*,*adapter*' test_train '*lora*,peft training*'
tests mtp 20 test_model 'mtp*' test_train 'step graphs: multi-token*'
tests graphs 40 test_core 'cuda graphs*' test_train 'step graphs*'
tests noise 20 test_model '*noise*' test_ops 'embedding noise*'

part bench_op 50 "$build/nemocube bench op --device cuda --dtype bf16 --nano --cold --no-verify --json"
part bench_step 30 "$build/nemocube bench step $slice --json"
part bench_graphs 30 "$build/nemocube bench step $slice --cuda-graphs --json"
part train 20 "$build/nemocube train configs/squad_tiny.yaml --device cuda --set checkpoint.checkpoint_dir=\$(mktemp -d)"

tests ops 40 test_ops '*'
tests others 40 test_core '*' test_model '*' test_train '*'
part ranks 20 "OMP_NUM_THREADS=1 mpirun --oversubscribe --bind-to none -np 2 $build/test_comm --test-suite=cuda"

if $list; then exit; fi
if [ "$failed" ]; then
  echo "gpu_check: not passed:$failed; see $folder" | tee -a "$folder/summary.txt"
  exit 1
fi
echo "gpu_check: all $passed parts passed; see $folder" | tee -a "$folder/summary.txt"
