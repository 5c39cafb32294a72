#!/bin/bash
# Prints docs/kernels.md: what the software GPU counts of the kernels at the sizes of Nemotron 3 Nano, what an H100 could
# make of it, and an estimate of a training step.   tools/kernel_report.sh BUILD
set -euo pipefail
build=$1
here=$(dirname "$0")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CUDA_EMULATOR_LIBRARIES=${CUDA_EMULATOR_LIBRARIES:-$build/cuda_emulator} OMP_WAIT_POLICY=passive

# counted L2_BYTES arguments..: nemocube under the software GPU; counters go to $folder/counters.json.
counted() {
  local l2=$1
  shift
  "$here/cuda_emulator/run" --no-check --l2 "$l2" --counters "$folder/counters.json" "$build/nemocube" "$@" \
    2>"$folder/stderr" || {
    cat "$folder/stderr" >&2
    return 1
  }
}

# of_op OP TOKENS: the L2 of 50 MiB shrinks with the tokens; 8192 leaves it whole. Adds the cases to $folder/cases.
of_op() {
  SECONDS=0
  counted $((52428800 * $2 / 8192)) bench op --op "$1" --device cuda --dtype bf16 --nano --markdown --cases "$folder/cases"
  echo "kernel_report: $1 took $SECONDS s" >&2
}

# launches PATTERN MICROBATCHES: of a training step, as bench step counts them.
launches() {
  mkdir -p "$folder/$1"
  # Heads, state and chunks of Nano, because ssd_scan has other kernels for other sizes.
  sed "s/\"hybrid_override_pattern\": *\"[^\"]*\"/\"hybrid_override_pattern\": \"$1\"/; s/\"vocab_size\": *[0-9]*/\"vocab_size\": 128/
    s/\"mamba_num_heads\": *[0-9]*/\"mamba_num_heads\": 8/; s/\"mamba_head_dim\": *[0-9]*/\"mamba_head_dim\": 64/
    s/\"n_groups\": *[0-9]*/\"n_groups\": 1/; s/\"ssm_state_size\": *[0-9]*/\"ssm_state_size\": 128/
    s/\"chunk_size\": *[0-9]*/\"chunk_size\": 128/" \
    "$here/../configs/nemotron_h_tiny/config.json" >"$folder/$1/config.json"
  "$here/cuda_emulator/run" --no-check "$build/nemocube" bench step --config "$folder/$1" --device cuda --dtype bf16 \
    --batch "$2" --microbatches "$2" --seq 64 --steps 1 --json 2>"$folder/stderr" >"$folder/step" || {
    cat "$folder/stderr" >&2
    return 1
  }
  sed -n 's/.*"launches":\([0-9]*\).*/\1/p' "$folder/step"
}

# block_row NAME PATTERN AIM: of one block, forward and backward. The second of two blocks less what one block alone takes, in
# the second of two microbatches, so that embedding, head, loss and optimizer cancel.
block_row() {
  local one one_twice two two_twice n
  one=$(launches "$2" 1)
  one_twice=$(launches "$2" 2)
  two=$(launches "$2$2" 1)
  two_twice=$(launches "$2$2" 2)
  n=$((two_twice - two - one_twice + one))
  echo "| $1 | $n | $3 | $([ $n -le "$3" ] || echo "launches $n > $3") |"
}

cat <<'END'
# Kernels, counted

`make kernel-report` writes this page. Nobody edits it.

Nothing here was timed. The compiled kernels ran on the software GPU ([tools/cuda_emulator](../tools/cuda_emulator/README.md)),
which counts what they do; registers and spilled bytes are those that ptxas allots. Sizes are those of NVIDIA Nemotron 3 Nano:
hidden 2688, 64 Mamba heads of 64 in 8 groups, state 128, convolution of 4 taps over 6144 channels, 32 query and 2 key heads of
128, 128 experts of 1856 of which 6 are chosen, a shared expert of 3712, vocabulary 131072, in bf16. The softmax router chooses 8
of 128 experts, as in Qwen3-30B-A3B. causal_conv1d and ssd_scan have all 8,192 tokens, because what they read twice depends on
how many of their blocks run at the same time. Elsewhere there are few tokens and few experts, but rows are whole, and so are the
384 rows that an expert gets of 8,192 tokens. The modelled L2 of 50 MiB shrinks with the tokens (`--l2`): to 3.1 MiB at 512. Some
cases have a size other than tokens. Their L2 is the share of those blocks that run at the same time: 16 rows of the loss, of 132
with one on each multiprocessor; 24 blocks with work of one expert, of 132; the whole L2 for sample_tokens, whose 8 rows are no
cut. The embedding's table has 2048 rows: a row that does not occur costs nothing.

What a figure means:

| column | meaning |
|---|---|
| must move | bytes by the operation's contract: each operand once |
| blocks, resident | blocks of a launch; blocks that a multiprocessor holds at once |
| DRAM MB | bytes between the modelled L2, empty when a kernel starts, and memory |
| sectors | 32 bytes for each sector that requests touch, over the bytes asked for. Below 1: threads share bytes |
| tensor M, other M | millions of multiply-adds on and off tensor cores |
| wavefronts | of shared memory, over those without bank conflicts; "-": no shared memory |
| registers, spilled | of a thread; bytes of spill stores and loads in its code |
| occupancy | warps of a multiprocessor over the most it can have |
| us, bound | the longest of the times below for all launches together, and which it is |
| missed | an aim that the kernel misses. "?": ptxas was not found |

The least time is the largest of these, at the rates of an H100 SXM. Of the last four, which belong to a multiprocessor, it is
the time of the busiest: of a launch's b blocks, which count as equally long, it has b / 132, rounded up. **At the few tokens
counted there are fewer blocks than at 8,192**, so that these four are longer here, for each token, than there: a launch of 32
blocks leaves 100 of 132 multiprocessors without work.

| bound | time | rate | source |
|---|---|---|---|
| DRAM | DRAM bytes | 3.35 TB/s | NVIDIA, H100 datasheet (SXM) |
| L2 | sectors of 32 bytes | 5.5 TB/s | not published by NVIDIA; of the size that microbenchmarks report (Chips and Cheese, 2 July 2023, H100 PCIe) |
| tensor cores | two operations a multiply-add | 989 TFLOP/s | NVIDIA, H100 datasheet: bf16, dense (half of its 1,979 with sparsity) |
| multiply-adds | two operations a multiply-add | 67 TFLOP/s | NVIDIA, H100 datasheet: f32. Multiply-adds of f64 and bf16 count as f32 |
| shared | wavefronts, one a clock and multiprocessor | 132 at 1.755 GHz | 32 banks of 4 bytes: CUDA C++ Programming Guide; 132: NVIDIA, H100 whitepaper |
| issue | warp instructions, 4 a clock and multiprocessor | 132 at 1.755 GHz | NVIDIA, H100 whitepaper: 4 schedulers. Counted are instructions of PTX, which ptxas may join or split |

1.755 GHz is the boost clock that an H100 PCIe reports; NVIDIA states 1.83 to 1.98 GHz for the SXM's peak rates. Time is a lower
bound: latency, the time of a launch, and the rates of exponentials and conversions are not in it.

Aims, for kernels that move 1 MB or more: DRAM bytes at most 1.05 times those that must move (ssd_scan: 1.6 forward, 2.2 forward
and backward; none where operations take longer than bytes), sectors at most 1.1 where that aim holds, wavefronts at most 1.15
where shared memory takes more than a tenth of the least time, no spills, and 95 % of the multiply-adds of attention and ssd_scan
on tensor cores.

"norm first" of gated_rmsnorm and scale_columns are no operations of Nemotron 3 Nano and have the sizes of Falcon-H1 34B: 32 Mamba
heads of 128, a state of 256, and two groups, which are assumed. gated_delta_rule and row_gate are of Qwen 3.5: one of 16 key heads
of the 9B with its two value heads of 128, and the width of the 35B-A3B. scale_by and expert_scale are of Gemma 4.

Products of cuBLAS are not among the operations: the software GPU computes them itself and counts nothing. deal_columns and
select_rows have no benchmark. What was counted is one call of each case of `bench op --nano`; tests check what the kernels compute.

END
printf '## Operations\n\n'
# TOKENS is what the cases have, but where their size is another: then 8192 times the share of L2 that the page names, such as
# 24 of 132 blocks of grouped_linear and 16 of 132 rows of cross_entropy.
of_op rmsnorm 512
of_op gated_rmsnorm 256
of_op scale_columns 128
of_op scale_by 256
of_op expert_scale 512
for op in causal_conv1d ssd_scan; do of_op $op 8192; done
of_op gated_delta_rule 128
of_op row_gate 256
for op in attention relu2 router embedding; do of_op $op 512; done
of_op permute 128
of_op grouped_linear 1489
of_op cross_entropy 993
of_op sample_tokens 8192
for op in adamw sgd global_norm; do of_op $op 512; done
cat <<'END'
## Launches of a block

Forward and backward of one block, with its residual addition and norm, on one rank without activation checkpointing, all experts
there. Counted as differences between steps of small models of one and of two such blocks with one and two microbatches
(`bench step`), which have Nano's Mamba heads, state and chunks, so that the head, the loss and the optimizer cancel. A product of
cuBLAS is one launch. Of more than 32,768 choices permute counts in a kernel of its own: at 8,192 tokens a MoE block has one launch
more. Copies by the CUDA runtime are not counted.

| block | launches | aim | missed |
|---|--:|--:|---|
END
SECONDS=0
block_row Mamba M 25
block_row MoE E 34
echo "kernel_report: launches took $SECONDS s" >&2
cat <<'END'

## A training step, estimated

**An estimate, not a measurement; [measured.md](measured.md) has those.** It is one rank's forward and backward of one sequence of
8,192 tokens, all 128 experts there and chosen equally often, without activation checkpointing.

- Kernels take the least time of the cases above, grown to 8,192 tokens: in proportion to the tokens, and kernels of attention
  that DRAM does not bound in proportion to the pairs of query and key. Tiles across the diagonal weigh more in the 512 tokens
  counted: attention may take up to a quarter less.
- Their work is shared evenly by the multiprocessors, because 8,192 tokens have blocks enough. Two kernels of ssd_scan walk along
  segments of the sequence, which above has all 8,192 tokens: their blocks are those, and the busiest multiprocessor decides.
- A product of cuBLAS takes the longer of its bytes at 3.35 TB/s and of its operations at 0.7 of the peak, 989 TFLOP/s: 0.7 is
  assumed. It is forward and two gradients together; a weight's gradient is read and written in f32. Products with the router's
  gate, which is f32, are of bf16 and three times as long, because an f32 factor is the sum of three terms; six times where both are f32.
- Grouped products are kernels of this program, and take the longer of what was counted and of what a product of cuBLAS would.
- Sums and conversions of the MoE block have no benchmark and take the time of their bytes. Filling gradients with zeros,
  deal_columns and select_rows are left out.
- The optimizer's work (AdamW, norm of the gradients) is shared by 8 ranks and happens once in 8,192 tokens of each rank: a
  step of more microbatches pays less of it.
- There is no communication, no time of launches and no waiting in it, and kernels do not overlap. The 31.6 billion parameters
  of the whole model do not fit a GPU; ranks that share experts have fewer of them and more rows for each, so that the bytes of
  weights weigh less there.

END
"$build/nemocube" bench nano --cases "$folder/cases"
