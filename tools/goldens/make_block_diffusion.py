#!/usr/bin/env python3
"""Makes the golden of block diffusion: a small Nemotron-Labs-Diffusion, and what its training computes.

    python tools/goldens/make_block_diffusion.py            rewrite tests/goldens/nemotron_labs_diffusion (the same bytes)
    python tools/goldens/make_block_diffusion.py --report   also print float32 noise

The layers are Hugging Face's Ministral 3, in float64 as in make_families.py. The mask of a doubled text is a table here, as NVIDIA's
modeling code has it, while nemocube has none. Rotary positions begin anew in each half; the scale of queries counts through both.

input.safetensors and expected.safetensors are those of the causal model. Of training there are two texts of 12 and 10 tokens, of
which `noised` says what is noised, `targets` what has a loss, and `probability` how likely noise was:

    training.safetensors        tokens, lengths, targets, noised, probability
    block_diff.safetensors      logits of the rows [noised, clean] of each text, loss and gradients
    bidirectional.safetensors   the same of noised rows that see their whole text
"""

import argparse
import pathlib
import shutil

import safetensors.torch
import torch
import transformers
from transformers import Ministral3Config, Ministral3ForCausalLM

import model_files as files
import oracle
from make_families import SMALL, frequencies, random_value, widened
from make_goldens import DEFAULT_OUT, distance

NAME = "nemotron_labs_diffusion"
LENGTHS, BLOCK, MASK, ALPHA = (12, 10), 4, 39, 0.3
BATCH, SEQ = 2, 13

ROPE = dict(
    rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=4, beta_fast=4.0, beta_slow=1.0, mscale=1.0,
    mscale_all_dim=1.0, llama_4_scaling_beta=0.3,
)
KEYS = dict(SMALL, num_key_value_heads=2, head_dim=8, tie_word_embeddings=False, rope_parameters=ROPE)


def in_files(name):
    return name.replace("model.", "encoder.", 1) if name.startswith("model.") else name.replace("lm_head", "diffusion_head")


def in_memory(name):
    return name.replace("encoder.", "model.", 1) if name.startswith("encoder.") else name.replace("diffusion_head", "lm_head")


def write_config(directory):
    files.write_json(directory / "config.json", {
        "architectures": ["NemotronLabsDiffusionModel"], "model_type": NAME, "hidden_act": "silu", "dlm_paradigm": "bidirectional",
        "mask_token_id": MASK, "block_size": BLOCK, **KEYS})


def write_model(directory, gen):
    with torch.device("meta"):
        shapes = {n: t.shape for n, t in Ministral3ForCausalLM(Ministral3Config(**KEYS)).state_dict().items()}
    files.write_model(directory, {in_files(n): random_value(n, shapes[n], gen).float() for n in sorted(shapes)}, shards=1)


def load(directory, dtype):
    config = Ministral3Config(**KEYS, attn_implementation="eager")
    model = Ministral3ForCausalLM(config)
    tensors = safetensors.torch.load_file(directory / "model.safetensors")
    model.load_state_dict({in_memory(n): t for n, t in tensors.items()})
    model = model.to(dtype).train()
    if dtype == torch.float64:
        rotary = model.model.rotary_emb
        rotary.inv_freq, rotary.attention_scaling = frequencies(config, SEQ, type(rotary))
        rotary.original_inv_freq = rotary.inv_freq
    return model


def doubled_mask(length):
    """Whether row i of [noised, clean] sees row j."""
    rows = torch.arange(2 * length)
    block, noised = rows % length // BLOCK, rows < length
    i, j = rows[:, None], rows[None, :]
    own = noised[:, None] & noised[None, :] & (block[:, None] == block[None, :])
    before = noised[:, None] & ~noised[None, :] & (block[:, None] > block[None, :])
    clean = ~noised[:, None] & ~noised[None, :] & (i >= j)
    return own | before | clean


def rows_of(model, ids, positions, mask):
    """Logits of one text, with rotary positions of their own and a mask [rows, rows]."""
    dtype = model.lm_head.weight.dtype
    hidden = model.model.embed_tokens(ids[None])
    turned = model.model.rotary_emb(hidden, position_ids=positions[None])
    hidden_rows = torch.where(mask, 0.0, float("-inf")).to(dtype)[None, None]
    counted = torch.arange(ids.numel())[None]
    for layer in model.model.layers:
        hidden = layer(hidden, attention_mask=hidden_rows, position_ids=counted, position_embeddings=turned)
    return model.lm_head(model.model.norm(hidden))[0]


def training_logits(model, training, doubled):
    logits, at = [], 0
    for length in LENGTHS:
        tokens, noised = (training[k][at:at + length] for k in ("tokens", "noised"))
        masked, positions = torch.where(noised.bool(), MASK, tokens), torch.arange(length)
        if doubled:
            logits.append(rows_of(model, torch.cat([masked, tokens]), positions.repeat(2), doubled_mask(length)))
        else:
            logits.append(rows_of(model, masked, positions, torch.ones(length, length, dtype=torch.bool)))
        at += length
    return logits


def training_loss(logits, training, doubled):
    diffusion, following, at = 0.0, 0.0, 0
    for length, of_text in zip(LENGTHS, logits):
        tokens, targets, noised, p = (training[k][at:at + length] for k in ("tokens", "targets", "noised", "probability"))
        losses = torch.nn.functional.cross_entropy(of_text[:length], tokens, reduction="none")
        diffusion = diffusion + (losses / p * noised).sum()
        if doubled:
            following = following + (
                torch.nn.functional.cross_entropy(of_text[length:-1], tokens[1:], reduction="none") * targets[1:]).sum()
        at += length
    return ALPHA * diffusion / training["noised"].sum() + following / training["targets"].sum()


def run(directory, training, dtype, doubled):
    model = load(directory, dtype)
    with widened():
        logits = training_logits(model, training, doubled)
        loss = training_loss(logits, training, doubled)
        loss.backward()
    grads = {f"grad.{in_files(n)}": p.grad for n, p in model.named_parameters()}
    return {"logits": torch.cat(logits).detach(), "loss": loss.detach(), **grads}


def run_causal(directory, ids, labels, dtype):
    model = load(directory, dtype)
    with widened():
        logits = model(input_ids=ids, use_cache=False).logits
        loss = oracle.mean_loss(logits, labels)
        loss.backward()
    grads = {f"grad.{in_files(n)}": p.grad for n, p in model.named_parameters()}
    return {"logits": logits.detach(), "loss": loss.detach(), **grads}


def write(path, tensors):
    assert all(t.dtype == torch.float64 for t in tensors.values())
    files.write_tensors(path, {n: t.float() for n, t in tensors.items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=DEFAULT_OUT, help="directory of the cases")
    parser.add_argument("--report", action="store_true", help="print how far plain float32 is from float64")
    args = parser.parse_args()
    oracle.check_version()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    directory = args.out / NAME
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    gen = torch.Generator().manual_seed(40)
    write_config(directory)
    write_model(directory, gen)
    ids, labels = files.random_input(gen, BATCH, SEQ, SMALL["vocab_size"])
    files.write_tensors(directory / "input.safetensors", {"input_ids": ids, "labels": labels})
    write(directory / "expected.safetensors", run_causal(directory, ids, labels, torch.float64))

    rows = sum(LENGTHS)
    targets = torch.ones(rows, dtype=torch.int64)
    for at, prompt in ((0, 3), (12, 1)):
        targets[at:at + prompt] = 0
    probability = torch.cat([torch.full((LENGTHS[0],), 0.625), torch.full((LENGTHS[1],), 0.375)]).double()
    drawn = torch.rand(rows, generator=gen, dtype=torch.float64) < probability
    training = {"tokens": torch.randint(0, MASK, (rows,), generator=gen), "targets": targets, "noised": drawn.long() * targets,
                "probability": probability}
    files.write_tensors(directory / "training.safetensors", {
        "lengths": torch.tensor(LENGTHS), **training, "probability": probability.float()})
    for name, doubled in (("block_diff", True), ("bidirectional", False)):
        expected = run(directory, training, torch.float64, doubled)
        write(directory / f"{name}.safetensors", expected)
        print(f"{name}: loss {expected['loss'].item():.4f}, {training['noised'].sum()} noised of {targets.sum()} targets")
        if args.report:
            plain = {k: v.float() if v.is_floating_point() else v for k, v in training.items()}
            model = load(directory, torch.float32)
            logits = training_logits(model, plain, doubled)
            loss = training_loss(logits, plain, doubled)
            loss.backward()
            worst = max(distance(p.grad, expected[f"grad.{in_files(n)}"]) for n, p in model.named_parameters())
            print(f"    float32: logits {distance(torch.cat(logits), expected['logits']):.1e}, gradients {worst:.1e}")
    print(f"{NAME}: {sum(f.stat().st_size for f in directory.iterdir()) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
