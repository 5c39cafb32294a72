#!/usr/bin/env python3
"""Makes tests/goldens/peft_training: 20 steps in which PEFT and PyTorch train the adapters of a small model.

    python3 -m venv VENV && VENV/bin/pip install -r tools/goldens/requirements.txt peft==0.21.2
    VENV/bin/python tools/goldens/make_peft_training.py             rewrite the files (the same bytes)
    VENV/bin/python tools/goldens/make_peft_training.py --report    also print how far plain float32 drifts

All four kinds of blocks. Adapted are all linear layers, lm_head and both stacks of experts. Each step has two microbatches
of two rows, the loss normalised by the labels of all four rows, clipping of the global norm, and AdamW on the adapters
alone. All arithmetic is float64. The files:

    config.json, model.safetensors    the base model, f32
    tokens.safetensors                input_ids and labels [80, 12]: four rows for each step
    fresh/                            the adapter as PEFT saves it before the first step: A uniform, B zeros
    gradient_1/, gradient_2/          gradients of steps 1 and 2 before clipping, in the form of an adapter
    final/                            the adapter after the last step
    steps.json                        what the steps are made with, losses and norms (before clipping)

Adapters and gradients are rounded to float32, the fresh adapter is float32.
"""

import argparse
import json
import pathlib
import shutil

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraModel
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file

import model_files as files
import oracle
from cases import Case
from make_goldens import DEFAULT_OUT
from make_train20 import learnable_rows

MODEL = Case(
    "peft_training", "ME*-", "20 steps of PEFT adapters",
    dict(vocab_size=48, hidden_size=20, num_attention_heads=3, num_key_value_heads=1, head_dim=6, intermediate_size=28,
         mamba_num_heads=4, mamba_head_dim=5, n_groups=2, ssm_state_size=7, chunk_size=8, n_routed_experts=5,
         moe_intermediate_size=12, moe_shared_expert_intermediate_size=18, routed_scaling_factor=1.5),
)
SEED = 30_000
STEPS, GLOBAL_BATCH, LOCAL_BATCH, SEQ = 20, 4, 2, 12
SMALLEST_GAP = 2e-4  # of the routing, over the whole run
TRAINING = dict(lr=1e-2, betas=[0.9, 0.98], eps=1e-8, weight_decay=0.1, max_norm=1.6)
RANK, ALPHA = 4, 6
LORA = dict(
    r=RANK, lora_alpha=ALPHA, lora_dropout=0.0,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "in_proj", "out_proj", "up_proj", "down_proj", "lm_head"],
    target_parameters=["experts.up_proj", "experts.down_proj"],
    rank_pattern={"o_proj": 3}, alpha_pattern={"in_proj": 2.5},
)


def write_inputs(directory, seed):
    """Model, adapter and data."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    files.write_config(directory, MODEL.config(), MODEL.pattern, MODEL.spelling)
    gen = torch.Generator().manual_seed(seed)
    state = files.random_state(directory, gen, MODEL)
    files.write_model(directory, files.to_file_names(state, MODEL.prefix, MODEL.stacked_experts), shards=1)
    ids, labels = learnable_rows(gen, STEPS * GLOBAL_BATCH, SEQ, MODEL.config()["vocab_size"])
    files.write_tensors(directory / "tokens.safetensors", {"input_ids": ids, "labels": labels})


def adapted(directory, dtype, seed):
    """The model of a directory with a fresh adapter, whose values are those of float32."""
    torch.manual_seed(seed)
    model = oracle.load(directory, torch.float32)
    # PEFT refuses out_proj in this model, because fused kernels take its weight past the adapter. The plain
    # path of transformers calls it as any other layer.
    LoraModel._check_target_module_compatiblity = lambda *_: None
    model = get_peft_model(model, LoraConfig(**LORA)).to(dtype)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained and all("lora_" in n for n in trained)
    return model


def adapter_tensors(model, values):
    """{name in PEFT's file: values(parameter)}"""
    parameters = dict(model.named_parameters())
    names = {n: n.replace(".default", "") for n, p in parameters.items() if p.requires_grad}
    assert set(names.values()) == set(get_peft_model_state_dict(model, save_embedding_layers=False))
    return {file_name: values(parameters[n]).detach().float().clone() for n, file_name in names.items()}


def write_adapter(directory, model, tensors):
    """What PEFT saves, with other values. Its config names neither this machine nor sets in an order of their own."""
    model.save_pretrained(directory, save_embedding_layers=False)
    (directory / "README.md").unlink(missing_ok=True)
    path = directory / "adapter_model.safetensors"
    saved = load_file(path)
    assert {n: t.shape for n, t in saved.items()} == {n: t.shape for n, t in tensors.items()}
    files.write_tensors(path, tensors)
    config = json.loads((directory / "adapter_config.json").read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = "goldens/peft_training"
    config["target_modules"].sort()
    config["target_parameters"].sort()
    files.write_json(directory / "adapter_config.json", config)


def gradient(p):
    return torch.zeros_like(p) if p.grad is None else p.grad


def loss_and_gradients(model, optimizer, ids, labels):
    """The mean loss over the labels of a step; its gradients are those of the parameters."""
    label_count = (labels != oracle.IGNORED).sum().item()
    optimizer.zero_grad(set_to_none=True)
    loss = 0.0
    base = model.get_base_model()
    with oracle.precision(base.model.embeddings.weight.dtype):
        for rows in range(0, GLOBAL_BATCH, LOCAL_BATCH):
            part = slice(rows, rows + LOCAL_BATCH)
            logits = model(input_ids=ids[part], use_cache=False).logits
            assert logits.dtype == base.model.embeddings.weight.dtype
            loss_sum = oracle.token_loss_sum(logits, labels[part])
            (loss_sum / label_count).backward()
            loss += loss_sum.item() / label_count
    return loss


def train(directory, dtype, seed):
    """(the model, {name of an adapter: tensors}, losses, norms, smallest routing gap of the run)"""
    model = adapted(directory, dtype, seed)
    adapters = {"fresh": adapter_tensors(model, lambda p: p)}
    tokens = load_file(directory / "tokens.safetensors")
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=TRAINING["lr"], betas=TRAINING["betas"], eps=TRAINING["eps"],
                                  weight_decay=TRAINING["weight_decay"])
    base = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
    losses, norms = [], []
    with oracle.watch_routing(model) as gaps:
        for step in range(STEPS):
            part = slice(GLOBAL_BATCH * step, GLOBAL_BATCH * (step + 1))
            losses.append(loss_and_gradients(model, optimizer, tokens["input_ids"][part], tokens["labels"][part]))
            if step < 2:
                adapters[f"gradient_{step + 1}"] = adapter_tensors(model, gradient)
            for p in parameters:
                p.grad = gradient(p)
            norms.append(sum(p.grad.square().sum().item() for p in parameters) ** 0.5)
            for p in parameters:
                p.grad *= min(1.0, TRAINING["max_norm"] / (norms[-1] + 1e-6))
            optimizer.step()
    assert all(torch.equal(p, base[n]) for n, p in model.named_parameters() if n in base)
    adapters["final"] = adapter_tensors(model, lambda p: p)
    return model, adapters, losses, norms, min(gaps)


def drift(got, want):
    """Largest ||got - want|| / ||want|| of two lists of tensors."""
    pairs = [(g.double(), w.double()) for g, w in zip(got, want) if w.any()]
    return max(((g - w).norm() / w.norm()).item() for g, w in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=DEFAULT_OUT / MODEL.name, help="directory to write")
    parser.add_argument("--report", action="store_true", help="print how far plain float32 drifts")
    args = parser.parse_args()
    oracle.prepare_process()
    for seed in range(SEED, SEED + 200):
        write_inputs(args.out, seed)
        model, adapters, losses, norms, gap = train(args.out, torch.float64, seed)
        if gap > SMALLEST_GAP:
            break
    else:
        raise SystemExit("no seed keeps the routing clear for the whole run")
    for name, value in adapters["gradient_1"].items():
        assert value.any() != ("lora_A" in name), f"{name}: B is zero, so the gradient of A must be"
    for name, tensors in adapters.items():
        write_adapter(args.out / name, model, tensors)
    files.write_json(args.out / "steps.json", {
        **TRAINING, "global_batch": GLOBAL_BATCH, "local_batch": LOCAL_BATCH, "losses": losses, "grad_norms": norms,
    })
    clipped = sum(n > TRAINING["max_norm"] for n in norms)
    print(f"peft_training: seed {seed}, routing gap {gap:.1e}, loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
          f"{clipped} of {STEPS} steps clipped")
    if args.report:
        _, narrow, losses32, norms32, _ = train(args.out, torch.float32, seed)
        print(f"    float32: losses within {drift(torch.tensor(losses32), torch.tensor(losses)):.1e}, "
              f"norms within {drift(torch.tensor(norms32), torch.tensor(norms)):.1e}")
        for name in ("gradient_1", "gradient_2", "final"):
            print(f"    float32: {name} within {drift(narrow[name].values(), adapters[name].values()):.1e}")


if __name__ == "__main__":
    main()
