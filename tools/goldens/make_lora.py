#!/usr/bin/env python3
"""Writes tests/goldens/lora/peft.safetensors: what PEFT makes of one linear layer and of one stack of experts.

    python3 -m venv VENV && VENV/bin/pip install -r tools/goldens/requirements.txt peft==0.21.2
    VENV/bin/python tools/goldens/make_lora.py

Float64. Base weights are frozen and there is no dropout. Tensors of each part, "linear." and "experts.":
    x, y, dy, dx            rows and their gradients; those of the experts are sorted by expert
    weight (and bias)       of the base layer
    A, B, dA, dB            as PEFT stores them: A [r, in], B [out, r]; of E experts A [E r, in], B [out, r E]
    scale                   lora_alpha / r
    offsets                 of the experts: the first row of each, and the number of rows
"""
import pathlib

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "lora" / "peft.safetensors"
OFFSETS = [0, 5, 5, 6, 13]  # one expert without rows
RANK, ALPHA = 3, 7


class OneLinear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(11, 9)

    def forward(self, x):
        return self.proj(x)


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(len(OFFSETS) - 1, 10, 6))

    def forward(self, x):
        rows = [x[first:end] @ self.up[e].T for e, (first, end) in enumerate(zip(OFFSETS, OFFSETS[1:]))]
        return torch.cat(rows)


class OneStack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = Experts()

    def forward(self, x):
        return self.experts(x)


def run(part, model, target, rows, cols):
    """The tensors of one part, with names that start with `part`."""
    base = {name.split(".")[-1]: p.detach().clone() for name, p in model.named_parameters()}
    adapted = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, **target))
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    (a,) = [p for name, p in trained.items() if "lora_A" in name]
    (b,) = [p for name, p in trained.items() if "lora_B" in name]
    assert len(trained) == 2
    for p in (a, b):  # PEFT begins with B = 0
        p.data = torch.randn(p.shape)
    x = torch.randn(rows, cols, requires_grad=True)
    y = adapted(x)
    dy = torch.randn(y.shape)
    y.backward(dy)
    tensors = dict(x=x, y=y, dy=dy, dx=x.grad, A=a, B=b, dA=a.grad, dB=b.grad, scale=torch.tensor(ALPHA / RANK))
    tensors["weight"] = base["weight"] if "weight" in base else base["up"]
    if "bias" in base:
        tensors["bias"] = base["bias"]
    return {f"{part}.{name}": t.detach().contiguous() for name, t in tensors.items()}


def main():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(20)
    tensors = run("linear", OneLinear(), dict(target_modules=["proj"]), 8, 11)
    tensors |= run("experts", OneStack(), dict(target_parameters=["experts.up"]), OFFSETS[-1], 6)
    tensors["experts.offsets"] = torch.tensor(OFFSETS)
    assert all(t.dtype in (torch.float64, torch.int64) for t in tensors.values())
    OUT.parent.mkdir(exist_ok=True)
    save_file(tensors, OUT)


main()
