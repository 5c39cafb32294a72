#!/usr/bin/env python3
"""Makes tests/goldens/f32_gate: a bf16 model whose router's weights are f32, as transformers holds them.

    python tools/goldens/make_f32_gate.py

transformers 5.24.0 keeps `gate.weight` and `e_score_correction_bias` of a bf16 model in f32, in memory and in what it saves
(`_keep_in_fp32_modules_strict`). In the model of this golden the gates of two experts, 2 i and 2 i + 1, are equal once they are
rounded to bf16, and tokens choose an odd number of experts: the digits that bf16 does not hold decide for every token. The
results are those of transformers in bf16.
"""

import argparse
import pathlib
import shutil

import torch
from safetensors.torch import load_file
from transformers import NemotronHForCausalLM

import model_files as files
import oracle
from cases import Case
from make_goldens import DEFAULT_OUT, distance

CASE = Case("f32_gate", "E", "a bf16 model with an f32 gate", dict(num_experts_per_tok=3), storage="bf16", seq=12)
GATE = "backbone.layers.0.mixer.gate.weight"
SEED = 60_000
PAIR_GAP = 1e-5  # between the scores of the two experts of a pair: f32 is sure of it
OTHER_GAP = 4e-3  # between other scores: so is bf16


def paired_gate(gate, gen):
    """Rows 2 i and 2 i + 1 are one row in bf16; each has digits of its own below."""
    pairs = gate[::2].bfloat16().float().repeat_interleave(2, dim=0)
    quarter_step = torch.exp2(torch.floor(torch.log2(pairs.abs())) - 9)  # below a power of two, half a step
    wide = pairs + 0.9 * quarter_step * (2 * torch.rand(pairs.shape, generator=gen) - 1)
    assert torch.equal(wide.bfloat16().float(), pairs)
    return wide


def write_candidate(directory, seed):
    """Writes model and input of one seed."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    files.write_config(directory, {**CASE.config(), "torch_dtype": "bfloat16"}, CASE.pattern, CASE.spelling)
    gen = torch.Generator().manual_seed(seed)
    state = files.to_file_names(files.random_state(directory, gen, CASE), CASE.prefix, False)
    tensors = files.as_stored(state, CASE.storage)
    tensors[GATE] = paired_gate(state[GATE], gen)
    bias = GATE.replace("weight", "e_score_correction_bias")
    tensors[bias] = state[bias][::2].repeat_interleave(2)
    files.write_model(directory, tensors, shards=1)
    ids, labels = files.random_input(gen, CASE.batch, CASE.seq, CASE.config()["vocab_size"])
    files.write_tensors(directory / "input.safetensors", {"input_ids": ids, "labels": labels})
    return ids, labels


def load(directory):
    model = NemotronHForCausalLM.from_pretrained(
        directory, dtype=torch.bfloat16, attn_implementation="eager", experts_implementation="eager"
    )
    wide = sorted(n for n, t in model.state_dict().items() if t.dtype == torch.float32)
    assert [n.rsplit(".", 2)[-1] for n in wide] == ["e_score_correction_bias", "weight"], wide
    stored = load_file(directory / "model.safetensors")[GATE]
    assert torch.equal(stored, model.model.layers[0].mixer.gate.weight), "the gate is not that of the file"
    return model.train()


def gaps(model, ids):
    """Over all tokens: (the least distance of the scores in the second best pair, of which one expert is chosen; that of the
    second best pair from its neighbours)."""
    found = []

    def note(router, _inputs, outputs):
        scores = outputs[0].detach().double().sigmoid() + router.e_score_correction_bias.double()
        ranked = scores.sort(dim=-1, descending=True)[0]
        apart = ranked[:, :-1] - ranked[:, 1:]
        found.append((apart[:, 2].min().item(), apart[:, [1, 3]].min().item()))

    hook = oracle.mixers(model, "NemotronHTopkRouter")[0].register_forward_hook(note)
    with torch.no_grad():
        model(input_ids=ids, use_cache=False)
    hook.remove()
    return found[0]


def results(model, ids, labels):
    """Logits, loss and gradients of the model in its own dtypes."""
    model.zero_grad(set_to_none=True)
    logits = model(input_ids=ids, use_cache=False).logits
    loss = oracle.mean_loss(logits.float(), labels)
    loss.backward()
    grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}
    assert grads["model.layers.0.mixer.gate.weight"].dtype == torch.float32
    named = files.to_file_names(grads, CASE.prefix, False)
    all_results = {"logits": logits.detach(), "loss": loss.detach(), **{f"grad.{n}": g for n, g in named.items()}}
    return {n: t.float() for n, t in all_results.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=DEFAULT_OUT / CASE.name, help="directory to write")
    args = parser.parse_args()
    oracle.prepare_process()
    for seed in range(SEED, SEED + 2000):
        ids, labels = write_candidate(args.out, seed)
        model = load(args.out)
        within, between = gaps(model, ids)
        if within > PAIR_GAP and between > OTHER_GAP and (labels != oracle.IGNORED).sum(1).min() > 0:
            break
    else:
        raise SystemExit("no seed gives clear routing")
    expected = results(model, ids, labels)
    # Not expected.safetensors: that is what other goldens have of float64.
    files.write_tensors(args.out / "expected_bf16.safetensors", expected)
    with torch.no_grad():
        gate = model.model.layers[0].mixer.gate.weight
        gate.copy_(gate.bfloat16().float())
    rounded = results(model, ids, labels)
    print(
        f"f32_gate: seed {seed}, gaps {within:.1e} and {between:.1e}; a rounded gate changes the logits by "
        f"{distance(rounded['logits'], expected['logits']):.1e}"
    )


if __name__ == "__main__":
    main()
