#!/usr/bin/env python3
"""Makes tests/goldens/mtp: small random models with multi-token prediction, in float64.

    python tools/goldens/make_mtp.py

transformers has no multi-token prediction (it ignores the tensors "mtp.*"), but all of its parts: the decoder, and for each
depth a decoder without embeddings, whose final norm is the depth's final_layernorm. This file joins them. With ids, labels
(already shifted) and h^0 = norm_f(decoder) of one sequence, depth k = 1, 2 computes at the place t
    f   = eh_proj [enorm(embeddings(id_{t+k})); hnorm(h^{k-1}_t)]
    h^k = final_layernorm(blocks(f))
    L_k = sum of CE(lm_head(h^k_t), label_{t+k}) over the places with such a label in the sequence
What is past the end of a sequence has the id 0 and no label. The gradients are those of
    (L_0 + BETA / 2 (L_1 + L_2)) / n      n: the labels of L_0

`two` has the weights of two depths, `repeated` those of one, which are applied twice. In each folder: the model's files,
input.safetensors (input_ids and labels [T], offsets of the sequences) and expected.safetensors (loss = L_0 / n,
mtp_loss.1 and .2 = L_k / n, grad.NAME of every parameter). A rerun writes the same bytes.
"""

import pathlib
import shutil
import tempfile
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from transformers import NemotronHForCausalLM

import model_files as files
import oracle
from cases import SMALL

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "mtp"
PATTERN, MTP_PATTERN, DEPTHS, BETA = "M*E", "*E", 2, 0.3
LENGTHS = (13, 2, 9)
SIZES = {
    **SMALL,
    "vocab_size": 48,
    "hidden_size": 24,
    "n_routed_experts": 4,
    "moe_intermediate_size": 12,
    "moe_shared_expert_intermediate_size": 20,
    "mamba_num_heads": 2,
    "routed_scaling_factor": 1.5,
}
DRAW = SimpleNamespace(gain=1.5, dt_bias_levels=(-4.0, -1.0, 0.5), bias_mean=0.0, bias_spread=0.1)
SMALLEST_GAP = 1e-3


class Depth(torch.nn.Module):
    """One depth: `body` is a decoder of which the embeddings are not used."""

    def __init__(self, body, gen):
        super().__init__()
        hidden = SIZES["hidden_size"]
        self.body = body

        def parameter(name, shape):
            return torch.nn.Parameter(files.random_value(name, shape, gen, DRAW).float().double())

        self.enorm = parameter("norm.weight", (hidden,))
        self.hnorm = parameter("norm.weight", (hidden,))
        self.eh_proj = parameter("eh_proj.weight", (hidden, 2 * hidden))

    def forward(self, embedded, hidden):
        parts = [F.rms_norm(embedded, (len(self.enorm),), self.enorm, SIZES["layer_norm_epsilon"])]
        parts.append(F.rms_norm(hidden, (len(self.hnorm),), self.hnorm, SIZES["layer_norm_epsilon"]))
        joined = torch.cat(parts, dim=-1) @ self.eh_proj.T
        return self.body(inputs_embeds=joined, use_cache=False).last_hidden_state

    def file_names(self, depth):
        """{name of a parameter or buffer here: its name in files, with experts stacked}"""
        first, names = depth * len(MTP_PATTERN), {}
        for name in self.state_dict():
            if name in ("enorm", "hnorm", "eh_proj"):
                names[name] = f"mtp.layers.{first}.{name}.weight"
            elif name == "body.norm_f.weight":
                names[name] = f"mtp.layers.{first + len(MTP_PATTERN) - 1}.final_layernorm.weight"
            elif name.startswith("body.layers."):
                block, rest = name.removeprefix("body.layers.").split(".", 1)
                names[name] = f"mtp.layers.{first + int(block)}.{rest}"
        return names


def random_model(pattern, gen):
    """A model with random values, exact in float32, as float64."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch)
        files.write_config(directory, SIZES, pattern, "pattern")
        files.write_model(directory, files.random_state(directory, gen, DRAW), 1)
        return oracle.load(directory, torch.float64)


def rolled(tokens, k, fill):
    return torch.cat([tokens[k:], torch.full((min(k, len(tokens)),), fill, dtype=tokens.dtype)])


def losses_of(model, depths, sequences):
    """[L_0, L_1, L_2], sums over all sequences."""
    sums = [0.0] * (DEPTHS + 1)
    for ids, labels in sequences:
        hidden = model.model(input_ids=ids[None], use_cache=False).last_hidden_state
        sums[0] = sums[0] + oracle.token_loss_sum(model.lm_head(hidden), labels)
        for k in range(1, DEPTHS + 1):
            embedded = model.model.embeddings(rolled(ids, k, 0)[None])
            hidden = depths[min(k, len(depths)) - 1](embedded, hidden)
            sums[k] = sums[k] + oracle.token_loss_sum(model.lm_head(hidden), rolled(labels, k, oracle.IGNORED))
    return sums


def named_tensors(model, depths, value):
    """{name in files: value(parameter or buffer)} for everything in the files."""
    main = {n: value(t) for n, t in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items()}
    named = files.to_file_names(main, "backbone", False)
    for d, depth in enumerate(depths):
        names = depth.file_names(d)
        tensors = {**dict(depth.named_parameters()), **dict(depth.named_buffers())}
        named |= files.to_file_names({to: value(tensors[n]) for n, to in names.items()}, "backbone", False)
    return {n: t for n, t in named.items() if t is not None}


def gradient_of(value):
    """None for a buffer without gradient; zeros for a parameter that nothing reached."""
    if not value.requires_grad:
        return None
    return torch.zeros_like(value) if value.grad is None else value.grad


def make(directory, stored, seed):
    """Writes one folder; returns the smallest gap of a router's choice."""
    gen = torch.Generator().manual_seed(seed)
    model = random_model(PATTERN, gen)
    depths = torch.nn.ModuleList(Depth(random_model(MTP_PATTERN, gen).model, gen) for _ in range(stored))
    sequences = []
    for length in LENGTHS:
        ids = torch.randint(0, SIZES["vocab_size"], (length + 1,), generator=gen)
        labels = ids[1:].clone()
        labels[torch.rand(length, generator=gen) < 0.2] = oracle.IGNORED
        sequences.append((ids[:-1].contiguous(), labels))
    with oracle.widened(), oracle.watch_routing(torch.nn.ModuleList([model, depths])) as gaps:
        sums = losses_of(model, depths, sequences)
        count = sum(int((labels != oracle.IGNORED).sum()) for _, labels in sequences)
        means = [s / count for s in sums]
        (means[0] + BETA / DEPTHS * sum(means[1:])).backward()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    mtp = {"num_nextn_predict_layers": stored, "mtp_hybrid_override_pattern": MTP_PATTERN}
    files.write_config(directory, {**SIZES, **mtp}, PATTERN, "pattern")
    files.write_model(directory, named_tensors(model, depths, lambda t: t.detach().float()), 1)
    offsets = torch.tensor([sum(LENGTHS[:i]) for i in range(len(LENGTHS) + 1)])
    ids, labels = (torch.cat(parts) for parts in zip(*sequences))
    files.write_tensors(
        directory / "input.safetensors", {"input_ids": ids, "labels": labels, "offsets": offsets}
    )
    expected = {"loss": means[0], **{f"mtp_loss.{k}": means[k] for k in range(1, DEPTHS + 1)}}
    expected |= {f"grad.{n}": g for n, g in named_tensors(model, depths, gradient_of).items()}
    files.write_tensors(directory / "expected.safetensors", {n: t.detach().float() for n, t in expected.items()})
    return min(gaps)


def main():
    oracle.prepare_process()
    for name, stored in (("two", DEPTHS), ("repeated", 1)):
        seed = 1
        while (gap := make(OUT / name, stored, seed)) < SMALLEST_GAP:
            seed += 1
        print(f"{name}: seed {seed}, smallest gap of a router's choice {gap:.1e}")


main()
