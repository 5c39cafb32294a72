#!/bin/bash
# Writes what tools/gpu_check.sh has found into docs/measured.md.
set -euo pipefail
usage() {
  cat <<'END'
tools/gpu_report.sh [FOLDER [PAGE]]

Replaces everything in PAGE (default: docs/measured.md) before the line "## Notes" by what the files of FOLDER (default: gpu_check),
which tools/gpu_check.sh has written, say. A part that did not run or has failed is named as such. The notes stay as they are.
END
}
if [[ ${1:-} == --help || ${1:-} == -h ]]; then usage && exit; fi
folder=${1:-gpu_check} page=${2:-$(dirname "$0")/../docs/measured.md}
for file in "$folder/summary.txt" "$folder/machine.txt" "$page"; do
  [ -f "$file" ] || { echo "gpu_report: no file $file; --help says what is read" >&2 && exit 1; }
done
notes=$(sed -n '/^## Notes$/,$p' "$page")
[ "$notes" ] || { echo "gpu_report: $page has no line \"## Notes\"" >&2 && exit 1; }

# value KEY: a number of the JSON line that is read.
value() { sed -n "s/.*\"$1\":\([0-9.e+-]*\)[,}].*/\1/p"; }

# operations FILE: a row of the table for each case of bench op --json.
operations() {
  sed -n 's/^{"op":"\([^"]*\)","variant":"\([^"]*\)","shape":{\([^}]*\)}.*"bytes":\([^,]*\),"flops":\([^,]*\),"us_median":\([^,]*\),.*"of_floor":\([^,]*\),"bound":"\([^"]*\)".*/\1\t\2\t\3\t\4\t\5\t\6\t\7\t\8/p' "$1" |
    awk -F '\t' '{
      gsub(/"/, "", $3); gsub(/:/, " ", $3); gsub(/,/, ", ", $3)
      bytes = $8 == "products" ? "" : sprintf("%.0f", $4 / $6 / 1e3)
      flops = $8 == "products" ? sprintf("%.0f", $5 / $6 / 1e6) : ""
      printf "| %s, %s: %s | %.0f | %s | %s | %.0f %% |\n", $1, $2, $3, $6, bytes, flops, 100 * $7
    }'
}

# step NAME TITLE: a row of the table for one run of bench step --json.
step() {
  local line waits
  line=$(grep -s '"step_seconds"' "$folder/$1.txt" || true)
  if [ -z "$line" ]; then
    echo "| $2 | not measured | | | | |"
    return
  fi
  waits=$(sed -n 's/.*"host_waits":{\([^}]*\)}.*/\1/p' <<<"$line")
  awk -v title="$2" -v waits="$waits" -v tokens="$(($(value batch <<<"$line") * $(value seq <<<"$line")))" \
    -v rate="$(value tokens_per_second <<<"$line")" -v flops="$(value flops <<<"$line")" \
    -v bytes="$(value tensor_peak_bytes <<<"$line")" -v launches="$(value launches <<<"$line")" 'BEGIN {
      split(waits, counts, /[,:]/)
      for (i in counts) total += counts[i]
      printf "| %s | %.4f | %.0f | %.1f | %.1f | %d, %d |\n", title, tokens / rate, rate, flops * rate / tokens / 1e12,
        bytes / 1e9, launches, total
    }'
}

{
  cat <<'END'
# Measured on a GPU

`tools/gpu_check.sh` on a machine with a GPU, and then `tools/gpu_report.sh`, write this page down to the notes, which are written by
hand. What the software GPU counts is in [kernels.md](kernels.md).

END
  awk 'NR == 1 { date = $0 } /MiB, [0-9]+ MHz$/ { gpu = $0 } /release/ { nvcc = $0 } { last = $0 }
    END { printf "%s; %s; commit %s, on %s.\n", gpu, nvcc, last, date }' "$folder/machine.txt"
  printf '\n## Checks\n\n| part | result | cases |\n|---|---|--:|\n'
  while IFS= read -r line; do
    name=${line%%: *} rest=${line#*: }
    [ "$name" = gpu_check ] && continue
    cases=$(sed -n 's/.*test cases: *\([0-9]*\) |.*/\1/p' "$folder/$name.txt" | awk '{ n += $1 } END { if (n) print n }')
    echo "| $name | ${rest%%: *} | $cases |"
  done <"$folder/summary.txt"
  cat <<'END'

## Operations

`nemocube bench op --device cuda --dtype bf16 --nano --cold`: the sizes of Nemotron 3 Nano, the L2 emptied before each call, medians.
The floor is the larger of the least bytes, at the rate of a large copy, and of the operations of matrix products, at the rate of a large
product by cuBLAS.

| operation | us | GB/s | TFLOP/s | of floor |
|---|--:|--:|--:|--:|
END
  rows=$([ -f "$folder/bench_op.txt" ] && operations "$folder/bench_op.txt" || true)
  echo "${rows:-| not measured | | | | |}"
  cat <<'END'

## Steps

`nemocube bench step --device cuda --dtype bf16 --batch 1 --seq 8192` of a slice of Nemotron 3 Nano as a rank of eight has it with experts
on eight ranks: blocks `MEM*EMEM*E` of full width, 16 experts of which 6 are chosen, vocabulary 131,072 (1.6 billion parameters).

| | s | tokens a second | TFLOP/s of the model | GB of tensors | launches, waits of the host |
|---|--:|--:|--:|--:|--:|
END
  step bench_step "by launches"
  step bench_graphs "by CUDA graphs"
  printf '\n%s\n' "$notes"
} >"$page.new"
mv "$page.new" "$page"
