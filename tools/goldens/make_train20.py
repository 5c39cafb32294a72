#!/usr/bin/env python3
"""Makes tests/goldens/train20: a small model, data, a recipe, and what 20 PyTorch training steps give.

    python tools/goldens/make_train20.py              rewrite tests/goldens/train20 (the same bytes)
    python tools/goldens/make_train20.py --report     also print how far plain float32 drifts in 20 steps

The steps are those of the recipe beside the data: rows in file order, two microbatches of two rows for
each step, the loss normalised by the labels of all four rows, clipping of the global norm, AdamW with
weight decay on every parameter, linear warm-up and cosine decay. All arithmetic is float64.
"""

import argparse
import math
import pathlib
import shutil

import torch
from safetensors.torch import load_file

import model_files as files
import oracle
from cases import Case
from make_goldens import DEFAULT_OUT

MODEL = Case("train20", "ME*-", "20 training steps", dict(chunk_size=8))
SEED = 20_000
STEPS = 20
GLOBAL_BATCH = 4
LOCAL_BATCH = 2
SEQ = 20
SMALLEST_GAP = 2e-4  # of the routing, over the whole run
OPTIMIZER = dict(lr=4.0e-3, betas=[0.9, 0.98], eps=1.0e-8, weight_decay=0.1)
SCHEDULE = dict(
    lr_decay_style="cosine", lr_warmup_steps=4, lr_decay_steps=20, init_lr=4.0e-4, max_lr=4.0e-3, min_lr=2.0e-4
)
MAX_NORM = 3.5  # about half of the steps are clipped

RECIPE = f"""\
# 20 steps on tokens.safetensors from the model beside this file; expected.json holds the results.
seed: 1111

step_scheduler:
  global_batch_size: {GLOBAL_BATCH}
  local_batch_size: {LOCAL_BATCH}
  max_steps: {STEPS}
  num_epochs: 1
  ckpt_every_steps: {STEPS}

model:
  pretrained_model_name_or_path: "."

checkpoint:
  enabled: false
  checkpoint_dir: checkpoints/

dataset:
  _target_: tokens
  path: tokens.safetensors

optimizer:
  _target_: torch.optim.AdamW
  lr: {OPTIMIZER["lr"]!r}
  betas: {OPTIMIZER["betas"]!r}
  eps: 1.0e-8
  weight_decay: {OPTIMIZER["weight_decay"]!r}

lr_scheduler:
  lr_decay_style: {SCHEDULE["lr_decay_style"]}
  lr_warmup_steps: {SCHEDULE["lr_warmup_steps"]}
  lr_decay_steps: {SCHEDULE["lr_decay_steps"]}
  init_lr: {SCHEDULE["init_lr"]!r}
  max_lr: {SCHEDULE["max_lr"]!r}
  min_lr: {SCHEDULE["min_lr"]!r}

clip_grad_norm:
  max_norm: {MAX_NORM!r}
"""


def learning_rate(n):
    """The rate after n scheduler steps: linear warm-up from init_lr, then a cosine down to min_lr."""
    first, top, last = SCHEDULE["init_lr"], SCHEDULE["max_lr"], SCHEDULE["min_lr"]
    warmup, end = SCHEDULE["lr_warmup_steps"], SCHEDULE["lr_decay_steps"]
    if warmup > 0 and n <= warmup:
        return first + (top - first) * n / warmup
    if n > end:
        return last
    done = (n - warmup) / (end - warmup)
    return last + 0.5 * (math.cos(math.pi * done) + 1.0) * (top - last)


def learnable_rows(gen, rows, seq, vocab):
    """Rows in which most tokens follow from the one before, so that the loss falls; labels already shifted."""
    successor = torch.randperm(vocab, generator=gen)
    ids = torch.randint(0, vocab, (rows, seq + 1), generator=gen)
    for t in range(seq):
        follows = torch.rand(rows, generator=gen) < 0.85
        ids[follows, t + 1] = successor[ids[follows, t]]
    labels = ids[:, 1:].clone()
    # prompts of very different lengths: microbatches of one step must differ in their label counts
    prompt = torch.randint(0, seq - 2, (rows, 1), generator=gen)
    labels[torch.arange(seq).expand(rows, seq) < prompt] = oracle.IGNORED
    labels[torch.rand(rows, seq, generator=gen) < 0.1] = oracle.IGNORED
    return ids[:, :-1].contiguous(), labels


def write_inputs(directory, seed):
    """Model, recipe and data."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    files.write_config(directory, MODEL.config(), MODEL.pattern, MODEL.spelling)
    gen = torch.Generator().manual_seed(seed)
    state = files.random_state(directory, gen, MODEL)
    files.write_model(directory, files.to_file_names(state, MODEL.prefix, MODEL.stacked_experts), shards=1)
    ids, labels = learnable_rows(gen, STEPS * GLOBAL_BATCH, SEQ, MODEL.config()["vocab_size"])
    files.write_tensors(directory / "tokens.safetensors", {"input_ids": ids, "labels": labels})
    (directory / "recipe.yaml").write_text(RECIPE, encoding="utf-8")


def global_norm(parameters):
    """L2 norm over all gradients together."""
    return math.sqrt(sum(p.grad.square().sum().item() for p in parameters))


def one_step(model, optimizer, ids, labels, rate):
    """One optimizer step on a global batch: (mean loss, gradient norm before clipping, labels)."""
    parameters = list(model.parameters())
    label_count = (labels != oracle.IGNORED).sum().item()
    optimizer.zero_grad(set_to_none=True)
    loss = 0.0
    with oracle.precision(model.lm_head.weight.dtype):
        for rows in range(0, GLOBAL_BATCH, LOCAL_BATCH):
            part = slice(rows, rows + LOCAL_BATCH)
            loss_sum = oracle.token_loss_sum(oracle.logits_of(model, ids[part]), labels[part])
            (loss_sum / label_count).backward()
            loss += loss_sum.item() / label_count
    for p in parameters:  # an expert without a token has a gradient of zero: AdamW decays it all the same
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    norm = global_norm(parameters)
    coefficient = MAX_NORM / (norm + 1e-6)
    if coefficient < 1.0:
        for p in parameters:
            p.grad.mul_(coefficient)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return loss, norm, label_count


def train(directory, dtype):
    """All steps from the files of a directory: (list of log records, smallest routing gap)."""
    model = oracle.load(directory, dtype)
    tokens = load_file(directory / "tokens.safetensors")
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=OPTIMIZER["lr"], betas=tuple(OPTIMIZER["betas"]), eps=OPTIMIZER["eps"],
        weight_decay=OPTIMIZER["weight_decay"], foreach=False, fused=False,
    )
    records = []
    with oracle.watch_routing(model) as gaps:
        for step in range(STEPS):
            rows = slice(step * GLOBAL_BATCH, (step + 1) * GLOBAL_BATCH)
            rate = learning_rate(step)
            ids, labels = tokens["input_ids"][rows], tokens["labels"][rows]
            loss, norm, label_count = one_step(model, optimizer, ids, labels, rate)
            records.append(
                dict(step=step, loss=loss, grad_norm=norm, lr=learning_rate(step + 1), lr_used=rate,
                     num_label_tokens=label_count)
            )
    return records, min(gaps)


def drift(records, reference, key):
    """Largest relative difference of one logged value."""
    return max(abs(a[key] - b[key]) / abs(b[key]) for a, b in zip(records, reference))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=DEFAULT_OUT / MODEL.name, help="directory to write")
    parser.add_argument("--report", action="store_true", help="print the run, and the drift of plain float32")
    args = parser.parse_args()
    oracle.prepare_process()
    for seed in range(SEED, SEED + 200):
        write_inputs(args.out, seed)
        records, gap = train(args.out, torch.float64)
        if gap > SMALLEST_GAP:
            break
    else:
        raise SystemExit("no seed keeps the routing clear for the whole run")
    files.write_json(args.out / "expected.json", records)
    clipped = sum(r["grad_norm"] > MAX_NORM for r in records)
    print(
        f"train20: seed {seed}, routing gap {gap:.1e}, loss {records[0]['loss']:.4f} -> {records[-1]['loss']:.4f}, "
        f"{clipped} of {STEPS} steps clipped"
    )
    if args.report:
        for r in records:
            print("   ", r)
        records32, _ = train(args.out, torch.float32)
        print(f"    float32: loss within {drift(records32, records, 'loss'):.1e}, "
              f"gradient norm within {drift(records32, records, 'grad_norm'):.1e}")


if __name__ == "__main__":
    main()
