#!/bin/bash
# Prints docs/overlap.md: steps of a slice of Nemotron 3 Nano on several ranks, as the software GPU's timeline estimates them.
#   tools/overlap/report.sh BUILD
set -euo pipefail
build=$1
here=$(dirname "$0")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CUDA_EMULATOR_LIBRARIES=${CUDA_EMULATOR_LIBRARIES:-$build/cuda_emulator} OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# row NAME PATTERN EXPERTS RANKS arguments..: a row of the table, of the second step.
row() {
  local name=$1 model=$folder/$2-$3 ranks=$4
  mkdir -p "$model"
  sed "s/\"hybrid_override_pattern\": *\"[^\"]*\"/\"hybrid_override_pattern\": \"$2\"/
    s/\"n_routed_experts\": *[0-9]*/\"n_routed_experts\": $3/" "$here/config.json" >"$model/config.json"
  shift 4
  SECONDS=0
  "$here/../cuda_emulator/run" --no-check --devices "$ranks" --threads 1 --timeline "$folder/trace" --rates "$here/rates" \
    mpirun --oversubscribe --bind-to none -np "$ranks" "$build/nemocube" bench step --config "$model" --device cuda --dtype bf16 \
    --seq 128 --steps 2 "$@" >"$folder/out" 2>"$folder/err" || {
    cat "$folder/out" "$folder/err" >&2
    return 1
  }
  awk -v name="$name" -v ranks="$ranks" '
    /^  step .*communication exposes/ { step = $2 + 0; exposed = $7 + 0; least = $NF + 0 }
    /^  pipeline: ranks idle/ { bubble = sprintf("%.1f %%", $5); schedule = sprintf("%.1f %%", $(NF - 1)) }
    /^  rank +computing/ { table = 1; next }
    table && NF == 6 { computing += $2; ++count }
    table && NF != 6 { table = 0 }
    END {
      ratio = least > 0 ? exposed / least : 1
      if (ratio > 1.1) missed = "exposed " sprintf("%.2f", ratio) " > 1.1"
      if (bubble - schedule > 2) missed = missed " idle"
      if (!bubble) bubble = schedule = "-"
      printf("| %s | %d | %.1f | %.1f | %.1f | %.1f | %.2f | %s | %s | %s |\n", name, ranks, step, computing / count, exposed,
        least, ratio, bubble, schedule, missed)
    }' "$folder/out"
  echo "overlap_report: $name took $SECONDS s" >&2
}

cat <<'END'
# Communication beside computation, estimated

`make overlap-report` writes this page. Nobody edits it.

**Nothing here was timed.** Steps of training ran on the software GPU, one process and one emulated device for each rank, over its NCCL.
Its timeline ([TIMELINE.md](../tools/cuda_emulator/timeline/TIMELINE.md) has rules, rates and sources) places their operations in
time. What ran is a slice of Nemotron 3 Nano cut down, of the blocks `MEM*EMEM*E` or, in pipelines, `MEMEMEMEMEM*`: widths about 10.5 times
smaller ([config.json](../tools/overlap/config.json)), 128 tokens a device. It is costed at the widths of Nano and 8,192 tokens a device: [rates](../tools/overlap/rates)
multiplies the bytes and operations of each kind of operation by what it grows by. With 32 experts on 8 ranks each has four, which are
costed as the 16 of Nano's 128; with 16 experts each rank has all. The factors of attention and of the experts' products are such that a
kernel takes about what it took on an H200 ([measured.md](measured.md)). Eight devices are a node with NVLink.

| column | meaning |
|---|---|
| step | of all ranks, ms |
| computing | mean of the ranks, ms |
| exposed | what the step takes longer than with communication that takes no time, ms |
| least | the same at least, by the dependencies that streams and events declare and by the rates of the links |
| idle | share of the time from the first pass to the last in which ranks of a pipeline compute nothing |
| by schedule | the same by the simulation of the schedule alone ([parallel/schedule/simulate.h](../parallel/schedule/simulate.h)) with the mean times of each stage's passes |

Aims: exposed at most 1.1 times the least; idle within 2 points of the schedule's.

| plan | ranks | step | computing | exposed | least | ratio | idle | by schedule | missed |
|---|--:|--:|--:|--:|--:|--:|--:|--:|---|
END
set_() { for s in "$@"; do printf -- '--set\ndistributed.%s\n' "$s"; done; }
mapfile -t ddp < <(set_ strategy=ddp)
mapfile -t zero3 < <(set_ strategy=megatron_fsdp zero_dp_strategy=3)
mapfile -t expert < <(set_ ep_size=8)
mapfile -t tensor < <(set_ tp_size=2 sequence_parallel=true)
mapfile -t pipeline < <(set_ pp_size=4)
slice='MEM*EMEM*E' stages='MEMEMEMEMEM*'
row 'data parallel' "$slice" 16 8 --batch 8 "${ddp[@]}"
row 'ZeRO-3' "$slice" 16 8 --batch 8 "${zero3[@]}"
row 'experts on 8 ranks, weights divided (fsdp2)' "$slice" 32 8 --batch 8 "${expert[@]}"
row 'tensor 2 with sequence parallelism' "$slice" 16 8 --batch 4 "${tensor[@]}"
row 'tensor 2 with sequence parallelism, experts on 8' "$slice" 32 8 --batch 4 "${tensor[@]}" "${expert[@]}"
row 'pipeline 4, 1f1b, 8 microbatches' "$stages" 16 4 --batch 8 --microbatches 8 "${pipeline[@]}"
row 'pipeline 4, interleaved, 8 microbatches' "$stages" 16 4 --batch 8 --microbatches 8 "${pipeline[@]}" \
  --set distributed.pipeline.pp_schedule=interleaved1f1b
cat <<'END'

What stays exposed:

- Embeddings and head are one unit: their weights are gathered before the first kernel, and their gradients are reduced after the last.
- Experts: the exchange that brings their results back, and what of the exchange before lasts longer than the shared expert.
- Tensor parallelism: sums of activations, for which the next product waits.
END
