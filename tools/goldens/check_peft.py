#!/usr/bin/env python3
"""Loads an adapter directory in PEFT and transformers, and compares what it adds to each weight with the files' own numbers.

    VENV/bin/python tools/goldens/check_peft.py MODEL_DIR ADAPTER_DIR EXPECTED.safetensors

MODEL_DIR has the config.json of a NemotronH model; its weights are taken as zeros, so that merged weights are s B A.
EXPECTED has s B A of each adapted weight by its canonical name, as in tests/goldens/peft. Every adapted weight must be there.
transformers alone (load_adapter, which wants PEFT 0.19 or later) is compared with PEFT by the logits of a random model.
"""
import sys

import peft
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import NemotronHConfig, NemotronHForCausalLM


def canonical(name):
    return "backbone" + name.removeprefix("model") if name.startswith("model.") else name


def model_of(directory, zeros):
    torch.manual_seed(1)
    model = NemotronHForCausalLM(NemotronHConfig.from_pretrained(directory)).float().eval()
    for p in model.parameters():
        p.data = torch.zeros_like(p) if zeros else p.data
    return model


def check_merged(model_dir, adapter_dir, expected):
    merged = PeftModel.from_pretrained(model_of(model_dir, True), adapter_dir).merge_and_unload()
    sums = {canonical(n): p.data for n, p in merged.named_parameters() if p.any()}
    assert sums.keys() == expected.keys(), sums.keys() ^ expected.keys()
    worst = max((sums[n] - expected[n]).abs().max().item() for n in sums)
    assert worst < 1e-5, worst
    print(f"{len(sums)} merged weights, largest difference {worst:g}")


def check_logits(model_dir, adapter_dir):
    ids = torch.arange(12).remainder(16)[None]
    with torch.no_grad():
        plain = model_of(model_dir, False)
        base = plain(ids).logits
        plain.load_adapter(adapter_dir)
        by_transformers = plain(ids).logits
        by_peft = PeftModel.from_pretrained(model_of(model_dir, False), adapter_dir).eval()(ids).logits
    moved, apart = (by_peft - base).abs().max().item(), (by_peft - by_transformers).abs().max().item()
    assert moved > 1e-3 and apart < 1e-4 * moved, (moved, apart)
    print(f"logits of transformers and PEFT: the adapter moves them by {moved:g}, they differ by {apart:g}")


model_dir, adapter_dir, expected_file = sys.argv[1:]
check_merged(model_dir, adapter_dir, load_file(expected_file))
if tuple(map(int, peft.__version__.split(".")[:2])) >= (0, 19):
    check_logits(model_dir, adapter_dir)
else:
    print(f"no comparison with transformers: PEFT is {peft.__version__}")
