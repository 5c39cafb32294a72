#!/usr/bin/env python3
"""Compares the logits of an adapter that nemocube has trained with those of PEFT and of transformers, which load its directory.

    build/nemocube forward --model MODEL --adapter ADAPTER --dtype f64 --input INPUT.safetensors --output OUTPUT.safetensors
    VENV/bin/python tools/goldens/check_trained_peft.py MODEL ADAPTER INPUT.safetensors OUTPUT.safetensors

ADAPTER is the directory with adapter_config.json (`model/` of a checkpoint). All compute in float64; the logits in OUTPUT are float32.
The adapter has to move the logits, or the comparison says nothing.
"""
import sys

import oracle
import torch
from peft import PeftModel
from safetensors.torch import load_file

oracle.prepare_process()
model_dir, adapter_dir, input_file, output_file = sys.argv[1:]
ids, expected = load_file(input_file)["input_ids"], load_file(output_file)["logits"].double()


def logits_of(model):
    with torch.no_grad(), oracle.widened():
        return model.eval()(input_ids=ids, use_cache=False).logits


def loaded():
    return oracle.load(model_dir, torch.float64)


base = logits_of(loaded())
transformers_model = loaded()
transformers_model.load_adapter(adapter_dir)
by = {
    "PEFT": logits_of(PeftModel.from_pretrained(loaded(), adapter_dir).double()),
    "transformers": logits_of(transformers_model.double()),
    "PEFT, merged": logits_of(PeftModel.from_pretrained(loaded(), adapter_dir).double().merge_and_unload()),
}
largest, moved = expected.abs().max().item(), (expected - base).abs().max().item()
assert moved > 1e-3 * largest, f"the adapter moves the logits by {moved:g} of {largest:g} only"
for name, logits in by.items():
    apart = (expected - logits).abs().max().item()
    print(f"{name}: logits up to {largest:g}, which the adapter moves by {moved:g}, differ by {apart:g}")
    assert apart < 1e-6 * largest, apart
