#!/usr/bin/env python3
"""Makes tests/goldens: small random NemotronH models with the logits, loss and gradients of Hugging Face.

    python tools/goldens/make_goldens.py                        all cases
    python tools/goldens/make_goldens.py --only moe_groups      some cases
    python tools/goldens/make_goldens.py --check --report       also prove the numbers, and print float32 noise

A rerun writes the same bytes.
"""

import argparse
import dataclasses
import math
import pathlib
import shutil

import torch
import transformers

import model_files as files
import oracle
from cases import CASES

DEFAULT_OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens"
SMALLEST_GAP = 1e-3  # a router's choice must be clearer than this for every token
MOST_NOISE = 8e-6  # float32 must agree with float64 this well: well-conditioned models make sharp tests
MOST_SEEDS = 3000


def case_seed(case):
    """First seed of a case: from its name, so that a new case does not move the others."""
    return sum((i + 1) * b for i, b in enumerate(case.name.encode())) * 10_000


def write_candidate(case, directory, seed):
    """Writes the files of one random model and its input."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    files.write_config(directory, case.config(), case.pattern, case.spelling)
    gen = torch.Generator().manual_seed(seed)
    state = files.random_state(directory, gen, case)
    tensors = files.as_stored(files.to_file_names(state, case.prefix, case.stacked_experts), case.storage)
    files.write_model(directory, tensors, case.shards)
    ids, labels = files.random_input(gen, case.batch, case.seq, case.config()["vocab_size"])
    files.write_tensors(directory / "input.safetensors", {"input_ids": ids, "labels": labels})
    return tensors, ids, labels


def check_loaded(case, model, tensors):
    """Every value in the model is the one in the file, bit for bit."""
    loaded = files.to_file_names(model.state_dict(), case.prefix, case.stacked_experts)
    assert loaded.keys() == tensors.keys(), loaded.keys() ^ tensors.keys()
    for name, value in tensors.items():
        assert torch.equal(loaded[name], value.to(loaded[name].dtype)), name


def distance(got, want):
    """Largest absolute difference relative to the largest absolute value wanted."""
    got, want = got.double(), want.double()
    return ((got - want).abs().max() / want.abs().max().clamp_min(1e-30)).item()


@dataclasses.dataclass
class Golden:
    """A model that passed, and its results in float64."""

    seed: int
    model: torch.nn.Module
    ids: torch.Tensor
    labels: torch.Tensor
    gap: float  # of the routing
    noise: dict  # {"logits" | "loss" | parameter name: distance of plain float32}
    logits: torch.Tensor
    loss: torch.Tensor
    grads: dict


def float32_noise(directory, ids, labels, logits, loss, grads):
    """How far plain float32 is from float64: logits, loss, and every gradient that is not zero."""
    logits32, loss32, grads32 = oracle.forward_backward(oracle.load(directory, torch.float32), ids, labels)
    noise = {n: distance(grads32[n], g) for n, g in grads.items() if g.abs().max() > 1e-9}
    return {"logits": distance(logits32, logits), "loss": distance(loss32, loss), **noise}


def make_clear_model(case, directory):
    """The first seed with clear routing, some labels in every row and little float32 noise."""
    for seed in range(case_seed(case), case_seed(case) + MOST_SEEDS):
        tensors, ids, labels = write_candidate(case, directory, seed)
        if (labels != oracle.IGNORED).sum(1).min() == 0:
            continue
        model = oracle.load(directory, torch.float64)
        gap = oracle.routing_gap(model, ids)
        if gap < SMALLEST_GAP:
            continue
        check_loaded(case, model, tensors)
        results = oracle.forward_backward(model, ids, labels)
        noise = float32_noise(directory, ids, labels, *results)
        if max(noise.values()) < MOST_NOISE:
            return Golden(seed, model, ids, labels, gap, noise, *results)
    raise RuntimeError(f"{case.name}: no seed gives clear routing")


def expected_tensors(case, logits, loss, grads):
    """The contents of expected.safetensors, in float32."""
    named = files.to_file_names(grads, case.prefix, case.stacked_experts)
    wide = {"logits": logits, "loss": loss, **{f"grad.{n}": g for n, g in named.items()}}
    return {n: t.float() for n, t in wide.items()}


# ---------------------------------------------------------------------------- proofs


def loss_beside(model, ids, labels, direction, step):
    """The loss with every parameter moved by step along a direction."""
    kept = {n: p.detach().clone() for n, p in model.named_parameters()}
    with torch.no_grad(), oracle.widened():
        for n, p in model.named_parameters():
            p.add_(direction[n], alpha=step)
        loss = oracle.mean_loss(oracle.logits_of(model, ids), labels).item()
        for n, p in model.named_parameters():
            p.copy_(kept[n])
    return loss


def check_slope(model, ids, labels, grads):
    """The gradients against a central difference of the loss along one random direction, in float64."""
    gen = torch.Generator().manual_seed(1)
    direction = {n: torch.randn(p.shape, generator=gen, dtype=p.dtype) for n, p in model.named_parameters()}
    along = sum((grads[n] * d).sum() for n, d in direction.items()).item()
    step = 2e-7
    ahead, behind = (loss_beside(model, ids, labels, direction, s) for s in (step, -step))
    slope = (ahead - behind) / (2 * step)
    error = abs(slope - along) / max(1.0, abs(along))
    assert error < 1e-6, (slope, along)
    return error


def check_chunks(model, ids, logits):
    """The length of a chunk must not matter: one token at a time is the plain recurrence."""
    mambas = oracle.mixers(model, "NemotronHMamba2Mixer")
    worst = 0.0
    for length in (1, 1000) if mambas else ():
        kept = [m.chunk_size for m in mambas]
        for m in mambas:
            m.chunk_size = length
        with torch.no_grad(), oracle.widened():
            worst = max(worst, distance(oracle.logits_of(model, ids), logits))
        for m, size in zip(mambas, kept):
            m.chunk_size = size
    assert worst < 1e-11, worst
    return worst


def check_causal(model, ids, logits):
    """A change of the last token must not reach the logits before it."""
    changed = ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % model.config.vocab_size
    with torch.no_grad(), oracle.widened():
        other = oracle.logits_of(model, changed)
    assert torch.allclose(other[:, :-1], logits[:, :-1], rtol=0, atol=1e-12 * logits.abs().max().item())
    assert not torch.allclose(other[:, -1], logits[:, -1])


def check(golden):
    """All proofs on one case; returns a line about them."""
    slope = check_slope(golden.model, golden.ids, golden.labels, golden.grads)
    chunks = check_chunks(golden.model, golden.ids, golden.logits)
    check_causal(golden.model, golden.ids, golden.logits)
    return f"proved: slope {slope:.0e}, chunk lengths {chunks:.0e}, causal"


# ---------------------------------------------------------------------------- main


def summary(golden, size):
    """The line printed about a case."""
    routing = "" if math.isinf(golden.gap) else f"routing gap {golden.gap:.1e}, "
    labelled = (golden.labels != oracle.IGNORED).sum().item()
    return (
        f"seed {golden.seed}, {routing}loss {golden.loss.item():.4f} over {labelled} of {golden.labels.numel()}, "
        f"logits std {golden.logits.std().item():.2f}, {size / 1e3:.0f} kB"
    )


def noise_line(noise):
    """The line printed about float32 noise."""
    worst = max((n for n in noise if n not in ("logits", "loss")), key=noise.get)
    return (
        f"float32 against float64: logits {noise['logits']:.1e}, loss {noise['loss']:.1e}, "
        f"gradients up to {noise[worst]:.1e} ({worst})"
    )


README = """\
# Golden files

Written by `tools/goldens/`, do not edit by hand (this page included). Each directory holds a small random
NemotronH model (`config.json` and safetensors files in Hugging Face form), `input.safetensors` and
`expected.safetensors`: what Hugging Face computes in float64, rounded to float32. How they are made, and what
tolerance they allow, is told in [tools/goldens/README.md](../../tools/goldens/README.md).

Made with torch {torch} and transformers {transformers}:

    python tools/goldens/make_goldens.py
    python tools/goldens/make_train20.py

| case | layers | batch x tokens | for |
|---|---|---|---|
{rows}
| tokenizer | | | ids of the `tokenizers` library on texts made to be hard, for five tokenizers made for it (`tools/goldens/make_tokenizer_torture.py`) and for eight pipelines of other steps (`make_tokenizer_pipelines.py`); where AutoTokenizer builds another pipeline (`make_tokenizer_classes.py`) |
| lora | | | a linear layer and a stack of experts with PEFT's branches: results and gradients in float64 (`tools/goldens/make_lora.py`) |
| peft | | | adapter directories that PEFT 0.21.2 and 0.18.1 save, and what they add to each weight (`tools/goldens/make_peft.py`) |
| f32_gate | `E` | 2 x 12 tokens | a bf16 model whose gate is f32, as transformers 5.24.0 holds it: what bf16 does not hold of the gate chooses experts; results in bf16 (`tools/goldens/make_f32_gate.py`) |
| mtp | `M*E`, depths `*E` | 13 + 2 + 9 tokens | two depths of multi-token prediction, and one that is applied twice: losses and gradients in float64 (`tools/goldens/make_mtp.py`) |
| nemotron_labs_diffusion | 2 layers of Ministral 3 | 2 x 13; texts of 12 and 10 tokens | the causal model, and training of a text that is there twice in blocks of 4, or noised and seen both ways: logits, losses and gradients in float64, with a mask as a table (`tools/goldens/make_block_diffusion.py`) |
| peft_training | `ME*-` | 80 rows x 12 | 20 AdamW steps of the adapters that PEFT puts on every linear layer and both stacks of experts: fresh and final adapter, gradients of two steps, losses and norms (`tools/goldens/make_peft_training.py`) |
| quantized | | | FP8 and NVFP4 matrices in the forms of published checkpoints, and the values that PyTorch makes of them (`tools/goldens/make_quantized.py`) |
| train20 | `ME*-` | 80 rows x 20 | 20 AdamW steps (`recipe.yaml`, `tokens.safetensors`) and their losses, \
gradient norms and learning rates (`expected.json`) |
"""


def write_readme(out):
    """tests/goldens/README.md: one line for each case."""
    rows = [f"| {c.name} | `{c.pattern}` | {c.batch} x {c.seq} | {c.purpose} |" for c in CASES]
    versions = dict(torch=torch.__version__.split("+")[0], transformers=transformers.__version__)
    (out / "README.md").write_text(README.format(rows="\n".join(rows), **versions), encoding="utf-8")


def make(case, out, args):
    """Makes one case and prints a line about it."""
    directory = out / case.name
    golden = make_clear_model(case, directory)
    expected = expected_tensors(case, golden.logits, golden.loss, golden.grads)
    files.write_tensors(directory / "expected.safetensors", expected)
    size = sum(f.stat().st_size for f in directory.iterdir())
    print(f"{case.name}: {summary(golden, size)}", flush=True)
    if args.report:
        print("    " + noise_line(golden.noise))
    if args.check:
        print("    " + check(golden))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=DEFAULT_OUT, help="where the case directories go")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="names of the cases to make")
    parser.add_argument("--check", action="store_true", help="prove gradients, causality and chunking on each case")
    parser.add_argument("--report", action="store_true", help="print how far plain float32 is from float64")
    args = parser.parse_args()
    oracle.prepare_process()
    unknown = set(args.only or []) - {c.name for c in CASES}
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    for case in CASES:
        if not args.only or case.name in args.only:
            make(case, args.out, args)
    if not args.only:
        write_readme(args.out)


if __name__ == "__main__":
    main()
