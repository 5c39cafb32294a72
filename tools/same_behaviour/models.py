"""Small models of every kind, for the cases of cases.py: config.json, and weights that the program has not made."""

import json
import shutil
import struct
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests" / "goldens"

# Sizes that 2, 4 and 8 ranks divide.
BASE = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "ME*-ME*-",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 64,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "n_groups": 4,
    "ssm_state_size": 8,
    "conv_kernel": 4,
    "chunk_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

# Name of a model to what differs from BASE.
CONFIGS = {
    "mixed": {},
    "mamba": {"hybrid_override_pattern": "MMMMMMMM"},
    "attention": {"hybrid_override_pattern": "********"},
    "mlp": {"hybrid_override_pattern": "--------"},
    "moe": {"hybrid_override_pattern": "EEEEEEEE"},
    "moe_groups": {"hybrid_override_pattern": "M*EE-MEE", "n_group": 4, "topk_group": 2},
    "moe_latent": {"hybrid_override_pattern": "EM*-EM*E", "moe_latent_size": 16},
    "biases": {"use_bias": True, "mamba_proj_bias": True, "attention_bias": True, "mlp_bias": True, "use_conv_bias": False},
    "listed": {"hybrid_override_pattern": None,
               "layers_block_type": ["mamba", "attention", "moe", "mlp", "linear_attention", "full_attention", "moe", "mlp"]},
    "mtp": {"num_nextn_predict_layers": 2, "mtp_hybrid_override_pattern": "*E"},
    "mtp_after_slash": {"hybrid_override_pattern": "ME*-ME*-/*-E", "num_nextn_predict_layers": 1},
    "pruned": {"per_layer_config": {
        "4": {"mamba_num_heads": 16, "mamba_head_dim": 4, "ssm_state_size": 4},
        "5": {"n_routed_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 8},
        "6": {"num_attention_heads": 4},
        "7": {"intermediate_size": 32}}},
    "quantized": {"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}},
}


def small_config(name):
    config = {**BASE, **CONFIGS[name]}
    return {key: value for key, value in config.items() if value is not None}


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def write_config(folder, name):
    """A folder with the config.json alone of one of CONFIGS."""
    write_json(folder / "config.json", small_config(name))


def copy_golden(folder, name):
    """A folder of tests/goldens: config.json and weights."""
    shutil.copytree(GOLDENS / name, folder, dirs_exist_ok=True)


def read_safetensors(path):
    """Name to (dtype, shape, bytes)."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    begin = 8 + size
    return {name: (t["dtype"], t["shape"], data[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]])
            for name, t in header.items()}


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def edit_tensors(folder, edit):
    """Changes the dictionary of tensors of a model's only file."""
    tensors = read_safetensors(folder / "model.safetensors")
    edit(tensors)
    write_safetensors(folder / "model.safetensors", tensors)


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        if value is None:
            config.pop(key, None)
        else:
            config[key] = value
    write_json(folder / "config.json", config)


def codes(count, mask):
    """Bytes that look random: `mask` keeps those bits that make small numbers of either sign."""
    state, out = 1, bytearray()
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(state >> 16 & mask)
    return bytes(out)


def quantize(folder, scheme):
    """The weights of routed experts, in_proj and q_proj become FP8 with a scale for each tensor, or NVFP4. Their
    values are new ones: nothing is rounded here."""
    def edit(tensors):
        for name, (_, shape, _) in list(tensors.items()):
            if not name.endswith(".weight") or not any(part in name for part in (".experts.", "in_proj", "q_proj")):
                continue
            rows, columns = shape
            if scheme == "NVFP4" and columns % 16 != 0:
                continue  # a scale is that of 16 columns
            one = struct.pack("<f", 0.01)
            if scheme == "FP8":
                tensors[name] = ("F8_E4M3", shape, codes(rows * columns, 0xBF))
                tensors[name + "_scale"] = ("F32", [], one)
            else:
                tensors[name] = ("U8", [rows, columns // 2], codes(rows * columns // 2, 0xBB))
                tensors[name + "_scale"] = ("F8_E4M3", [rows, columns // 16], bytes([0x38]) * (rows * columns // 16))
                tensors[name + "_scale_2"] = ("F32", [], one)

    edit_tensors(folder, edit)
    edit_config(folder, quantization_config={"quant_method": "modelopt", "quant_algo": scheme}, torch_dtype="bfloat16")
