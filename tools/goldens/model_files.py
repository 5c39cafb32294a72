"""Random small models, their files in Hugging Face form, and random inputs for them."""

import json
import math
import pathlib

import torch
from safetensors.torch import save_file
from transformers import NemotronHConfig, NemotronHForCausalLM

from oracle import IGNORED

PATTERN_KEYS = {
    "M": ("mamba", "linear_attention"),
    "*": ("attention", "full_attention"),
    "-": ("mlp", "mlp"),
    "E": ("moe", "moe"),
}


def write_tensors(path, tensors):
    """One safetensors file with the metadata that Hugging Face writes."""
    save_file({name: t.contiguous() for name, t in tensors.items()}, path, metadata={"format": "pt"})
    pathlib.Path(path).chmod(0o644)


def write_json(path, value):
    pathlib.Path(path).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# ---------------------------------------------------------------------------- configuration


def layer_keys(pattern, spelling):
    """The config keys that say which mixer each layer has, in one of the spellings found in the wild."""
    if spelling == "pattern":
        return {"hybrid_override_pattern": pattern, "num_hidden_layers": len(pattern)}
    if spelling == "legacy_list":
        return {"layers_block_type": [PATTERN_KEYS[c][0] for c in pattern]}
    if spelling == "new_list":
        return {"layer_types": [PATTERN_KEYS[c][1] for c in pattern]}
    raise ValueError(f"unknown spelling of the layers: {spelling}")


def write_config(directory, keys, pattern, spelling):
    """config.json: as Hugging Face saves it (`hf_saved`), or by hand with the given spelling."""
    by_hand = {"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", **keys}
    if spelling != "hf_saved":
        write_json(directory / "config.json", {**by_hand, **layer_keys(pattern, spelling)})
        return
    config = NemotronHConfig(**keys, **layer_keys(pattern, "new_list"))
    config.architectures = ["NemotronHForCausalLM"]
    config.save_pretrained(directory)


# ---------------------------------------------------------------------------- values


def random_value(name, shape, gen, options):
    """Values far from the initial ones, so that no parameter can be forgotten without being noticed."""
    normal = torch.randn(shape, generator=gen, dtype=torch.float64)
    leaf = name.rsplit(".", 2)[-2:]
    if name.endswith("e_score_correction_bias"):
        return options.bias_mean + options.bias_spread * normal
    if leaf[-1] == "A_log":
        return torch.log(1.0 + 15.0 * torch.rand(shape, generator=gen, dtype=torch.float64))
    if leaf[-1] == "dt_bias":
        levels = torch.tensor(options.dt_bias_levels, dtype=torch.float64)
        return levels[torch.arange(shape[0]) % len(levels)] + 0.3 * normal
    if leaf[-1] == "D":
        return 1.0 + 0.5 * normal
    if leaf[-1] == "bias":
        return 0.3 * normal
    if leaf[0] in ("norm", "norm_f"):
        return 0.5 + torch.rand(shape, generator=gen, dtype=torch.float64)
    if leaf[0] == "conv1d":
        return 0.5 * normal
    if leaf[0] == "embeddings":
        return normal
    return options.gain / math.sqrt(shape[-1]) * normal


def random_state(directory, gen, options):
    """{parameter or buffer name of the Hugging Face class: float32 values} for the config of a directory."""
    config = NemotronHConfig.from_pretrained(directory)
    with torch.device("meta"):
        shapes = {n: t.shape for n, t in NemotronHForCausalLM(config).state_dict().items()}
    return {n: random_value(n, shapes[n], gen, options).float() for n in sorted(shapes)}


# ---------------------------------------------------------------------------- names in the files


def to_file_names(tensors, prefix, stacked_experts):
    """Renames tensors from the names of the class to those of a file.

    prefix: "backbone" or "model". Stacked experts keep `experts.up_proj` [experts, out, in]; otherwise
    every expert becomes a tensor of its own, `experts.{e}.up_proj.weight` [out, in].
    """
    renamed = {}
    for name, value in tensors.items():
        if name.startswith("model."):
            name = prefix + name.removeprefix("model")
        if ".mixer.experts." not in name or stacked_experts:
            renamed[name] = value
            continue
        head, projection = name.rsplit(".", 1)
        for e, expert in enumerate(value):
            renamed[f"{head}.{e}.{projection}.weight"] = expert
    return renamed


def as_stored(tensors, storage):
    """f32, or bf16 for everything except the router's correction bias (as published models hold it)."""
    if storage == "f32":
        return tensors
    return {n: t if n.endswith("e_score_correction_bias") else t.bfloat16() for n, t in tensors.items()}


def write_model(directory, tensors, shards):
    """model.safetensors, or several files and their index."""
    if shards == 1:
        write_tensors(directory / "model.safetensors", tensors)
        return
    names = list(tensors)
    weight_map = {}
    for s in range(shards):
        # neighbours go to different files, so that a reader cannot rely on their order
        part = names[s::shards]
        file = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        write_tensors(directory / file, {n: tensors[n] for n in part})
        weight_map |= {n: file for n in part}
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(directory / "model.safetensors.index.json", index)


# ---------------------------------------------------------------------------- inputs


def random_input(gen, batch, seq, vocab):
    """Ids and shifted labels. Ignored: a prompt of random length and a fifth of the rest."""
    ids = torch.randint(0, vocab, (batch, seq + 1), generator=gen)
    labels = ids[:, 1:].clone()
    prompt = torch.randint(0, max(1, seq // 2), (batch, 1), generator=gen)
    labels[torch.arange(seq).expand(batch, seq) < prompt] = IGNORED
    labels[torch.rand(batch, seq, generator=gen) < 0.2] = IGNORED
    return ids[:, :-1].contiguous(), labels
