#!/usr/bin/env python3
"""Writes tests/goldens/peft: adapters that PEFT saves for a small NemotronH model, and what they add to its weights.

    python3 -m venv VENV && VENV/bin/pip install -r tools/goldens/requirements.txt peft==0.21.2
    PYTHONHASHSEED=0 VENV/bin/python tools/goldens/make_peft.py

Run it again with peft==0.18.1 for the cases of that release, which lays stacks of experts out in another way. (PEFT writes
sets in the order of their hashes.) Files of a case:
    config.json             of the model
    adapter_config.json, adapter_model.safetensors      by PEFT
    expected.safetensors    s B A of each adapted weight, by its canonical name: what PEFT's merge adds to a weight of zeros
"""
import os
import pathlib
import shutil

import peft
import torch
from peft import LoraConfig, get_peft_model
from transformers import NemotronHConfig, NemotronHForCausalLM

import model_files as files

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens" / "peft"
PATTERN = "M*E-E"
SIZES = dict(
    vocab_size=20, hidden_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=8, intermediate_size=24,
    mamba_num_heads=2, mamba_head_dim=8, n_groups=1, ssm_state_size=4, conv_kernel=4, chunk_size=8, n_routed_experts=3,
    num_experts_per_tok=2, moe_intermediate_size=12, moe_shared_expert_intermediate_size=10, tie_word_embeddings=False,
)
BOTH = ["mixer.experts.up_proj", "mixer.experts.down_proj"]
LINEAR = ["q_proj", "o_proj", "in_proj", "shared_experts.up_proj", "shared_experts.down_proj", "layers.3.mixer.up_proj"]


def case(release="0.21.2", sizes=None, dtype=torch.float32, **lora):
    return dict(release=release, sizes=SIZES | (sizes or {}), dtype=dtype, lora=dict(r=4, lora_alpha=6) | lora)


SQUARE = dict(moe_intermediate_size=16)  # as wide as the hidden states
CASES = {
    "linear": case(target_modules=LINEAR + ["lm_head"], lora_dropout=0.1),
    "bf16": case(target_modules=["q_proj", "in_proj"], target_parameters=BOTH, dtype=torch.bfloat16),
    "experts": case(target_modules=["k_proj"], target_parameters=BOTH),
    "experts_up": case(target_modules=[], target_parameters=BOTH[:1]),
    "experts_down": case(target_modules=[], target_parameters=BOTH[1:]),
    "experts_mixed": case(
        target_modules=[], target_parameters=[f"model.layers.2.{BOTH[1]}", f"model.layers.4.{BOTH[0]}"]
    ),
    "patterns": case(
        target_modules=r".*\.(q_proj|v_proj|in_proj|shared_experts\.(up|down)_proj)",
        target_parameters=BOTH,
        use_rslora=True,
        rank_pattern={"layers.2.mixer.experts.up_proj": 2, r"mixer\.[qv]_proj": 3, "q_proj": 5, "experts.down_proj": 1},
        alpha_pattern={"in_proj": 16, r"layers.[0-3].mixer.experts.\w+": 10},
    ),
    "square": case(sizes=SQUARE, target_modules=["v_proj"], target_parameters=BOTH),
    "square_0_18": case("0.18.1", SQUARE, target_modules=["v_proj"], target_parameters=BOTH),
    "experts_0_18": case("0.18.1", target_modules=["v_proj"], target_parameters=BOTH),
    "experts_up_0_18": case("0.18.1", target_modules=[], target_parameters=BOTH[:1]),
    "experts_down_0_18": case("0.18.1", target_modules=[], target_parameters=BOTH[1:]),
}


def zero_model(directory):
    model = NemotronHForCausalLM(NemotronHConfig.from_pretrained(directory)).float()
    for p in model.parameters():
        p.data.zero_()
    return model


def lora_parameters(model):
    return [p for name, p in sorted(model.named_parameters()) if ".lora_A." in name or ".lora_B." in name]


def canonical(name):
    return "backbone" + name.removeprefix("model") if name.startswith("model.") else name


def make(name):
    spec = CASES[name]
    directory = OUT / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    files.write_config(directory, spec["sizes"], PATTERN, "pattern")
    model = get_peft_model(zero_model(directory), LoraConfig(task_type="CAUSAL_LM", **spec["lora"]))
    model.peft_config["default"].base_model_name_or_path = "goldens/tiny"
    gen = torch.Generator().manual_seed(sum(name.encode()))
    for p in lora_parameters(model):  # numbers that bf16 holds
        p.data = torch.randint(-8, 9, p.shape, generator=gen).div(8).to(spec["dtype"])
    model.save_pretrained(directory)
    (directory / "README.md").unlink()
    (directory / "adapter_model.safetensors").chmod(0o644)
    for p in lora_parameters(model):
        p.data = p.data.float()
    merged = model.merge_and_unload()
    sums = {canonical(n): p.data for n, p in merged.named_parameters() if p.any()}
    files.write_tensors(directory / "expected.safetensors", sums)
    print(name, len(sums), "weights")


assert os.environ.get("PYTHONHASHSEED") == "0", "want PYTHONHASHSEED=0"
for made in [n for n, spec in CASES.items() if spec["release"] == peft.__version__]:
    make(made)
