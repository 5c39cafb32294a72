#!/bin/sh
# What a machine with a GPU can say about this checkout: builds, tests and benchmarks on the GPU, then compute-sanitizer where
# it is installed, and writes everything into one folder. The limits add up to 23 minutes; the sanitizer has half of them.
#     tools/gpu_check.sh [FOLDER]        default: gpu_check
set -u
cd "$(dirname "$0")/.."
folder=${1:-gpu_check}
mkdir -p "$folder"
failed=""

# step NAME SECONDS COMMAND...: the output goes to FOLDER/NAME.txt.
step() {
  name=$1
  limit=$2
  shift 2
  start=$(date +%s)
  timeout "$limit" "$@" >"$folder/$name.txt" 2>&1
  status=$?
  echo "$name: exit status $status after $(($(date +%s) - start)) s (limit $limit s): $*" | tee -a "$folder/summary.txt"
  [ "$status" -eq 0 ] || failed="$failed $name"
}

: >"$folder/summary.txt"
step machine 20 sh -c 'nvidia-smi; nvcc --version; git describe --always --dirty'
step build 240 make
step version 20 build/nemocube --version
step bench_op 60 build/nemocube bench op --device cuda
step bench_op_bf16 60 build/nemocube bench op --device cuda --dtype bf16 --nano --cold --no-verify
step bench_step 60 build/nemocube bench step --config configs/nemotron_h_tiny --device cuda --dtype bf16
step test 240 make test-gpu
if command -v compute-sanitizer >/dev/null; then
  step sanitize 690 make sanitize-gpu
else
  echo "sanitize: left out: no compute-sanitizer on the PATH" | tee -a "$folder/summary.txt"
fi
if [ -n "$failed" ]; then
  echo "gpu_check: failed:$failed; see $folder" | tee -a "$folder/summary.txt"
  exit 1
fi
echo "gpu_check: all passed; see $folder" | tee -a "$folder/summary.txt"
