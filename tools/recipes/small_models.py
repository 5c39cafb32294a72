"""Small stand-ins for the models that AutoModel's Nemotron recipes name, in the form of a local cache of the Hugging Face Hub.

A stand-in has what its original has: the kinds of its blocks, experts with or without a latent width, depths of multi-token
prediction, heads whose width together is not that of the model. Its weights are those of a run of one step from fresh weights.
"""

import json
import shutil
import struct
from pathlib import Path

BASE = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "torch_dtype": "bfloat16",
    "vocab_size": 2048,  # that of data/samples/tokenizer is 2000
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "n_groups": 4,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "chunk_size": 32,
    "use_conv_bias": True,
    "layer_norm_epsilon": 1e-05,
    "initializer_range": 0.02,
    "time_step_limit": [0.0, float("inf")],
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def experts(count, latent=None):
    return {
        "n_routed_experts": count,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "moe_shared_expert_intermediate_size": 48,
        "moe_latent_size": latent,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    }


ONE_DEPTH = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}
# All 108 blocks, because a recipe says how many of them a stage has.
ULTRA = "MEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
WORDS = {"M": "mamba", "*": "attention", "E": "moe"}

# Name of the Hub to what differs from BASE.
NEMOTRON_H = {
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": {"hybrid_override_pattern": "MEMEM*EME", **experts(16)},
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16": {"hybrid_override_pattern": "MEMEM*EME", **experts(16), **ONE_DEPTH},
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": {"hybrid_override_pattern": "MEMEMEM*E", **experts(32, 24), **ONE_DEPTH},
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": {
        "hidden_size": 32,
        "layers_block_type": [WORDS[letter] for letter in ULTRA],
        **experts(64, 16),
        "num_nextn_predict_layers": 1,
        "mtp_layers_block_type": ["attention", "moe"],
    },
    # The Mamba heads of these two have a width that is no power of two, as in the originals.
    "nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16": {"hybrid_override_pattern": "M-M-M-MM-M-M*-M-", "mamba_head_dim": 20, "chunk_size": 64},
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": {"hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-", "mamba_head_dim": 20},
}

# Rows of the embeddings that the stand-in of this model has zeros in, for the recipe that repairs such rows.
DAMAGED_MODEL = "nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16"
DAMAGED_ROWS = range(2001, 2004)

LLAMA = {
    "torch_dtype": "bfloat16", "vocab_size": 2048, "hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 4, "intermediate_size": 64, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2,
}


def pruned(attention=None, ffn=None):
    """A layer of DeciLM: query heads for each key and value head, and the factor of the MLP's width; None: absent."""
    return {
        "attention": {"n_heads_in_group": attention, "no_op": attention is None, "replace_with_linear": False},
        "ffn": {"ffn_mult": ffn, "no_op": ffn is None, "replace_with_linear": False},
    }


# Name of the Hub to the whole config.
OTHER_FAMILIES = {
    "nvidia/Llama-3.1-Nemotron-Nano-8B-v1": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **LLAMA},
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1_5": {
        **LLAMA, "architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas", "num_key_value_heads": None,
        "intermediate_size": None, "block_configs": [pruned(2, 2.625), pruned(2, 1.0), pruned(None, 1.0), pruned(2, 5.25)]},
}

# Models of architectures that are refused have a config.json alone: nothing else of them is ever read.
REFUSED = {}

CHAT_TEMPLATE = """\
{%- for message in messages %}<|{{ message.role }}|>
{{ message.content }}</s>
{% endfor %}{%- if add_generation_prompt %}<|assistant|>
{% endif %}"""

RECIPE = """\
model: {{_target_: from_config, config: {model}, torch_dtype: bf16{mtp}}}
step_scheduler: {{global_batch_size: 1, local_batch_size: 1, max_steps: 1}}
dataset: {{_target_: mock, vocab_size: 2000, seq_length: 8, num_samples: 1}}
optimizer: {{_target_: AdamW, lr: 0}}
lr_scheduler: {{lr_warmup_steps: 0}}
checkpoint: {{checkpoint_dir: {run}}}
"""


def snapshot(hub, kind, name):
    """An empty folder of the cache that the name stands for."""
    folder = hub / f"{kind}--{name.replace('/', '--')}"
    place = folder / "snapshots" / "0123456789abcdef"
    place.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(place.name)
    return place


def zero_rows(file, tensor, rows):
    """Writes zeros into rows of a bf16 matrix of a safetensors file."""
    with open(file, "r+b") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        entry = json.loads(f.read(size))[tensor]
        if entry["dtype"] != "BF16":
            raise SystemExit(f"{file}: {tensor}: want BF16, got {entry['dtype']}")
        width = 2 * entry["shape"][1]
        f.seek(8 + size + entry["data_offsets"][0] + rows[0] * width)
        f.write(bytes(width * len(rows)))


def make_models(hub, scratch, tokenizer, run_program):
    """Makes all of them. `run_program(arguments)` runs nemocube and raises where it fails."""
    for name, config in REFUSED.items():
        (snapshot(hub, "models", name) / "config.json").write_text(json.dumps(config))
    for name, config in [*((name, {**BASE, **own}) for name, own in NEMOTRON_H.items()), *OTHER_FAMILIES.items()]:
        work = scratch / name
        work.mkdir(parents=True)
        (work / "config.json").write_text(json.dumps(config))
        mtp = ", num_nextn_predict_layers: 1" if "num_nextn_predict_layers" in config else ""
        (work / "recipe.yaml").write_text(RECIPE.format(model=work, mtp=mtp, run=work / "run"))
        run_program(["train", str(work / "recipe.yaml")])
        place = snapshot(hub, "models", name)
        for folder in (work / "run" / "LATEST" / "model", tokenizer):  # mock data need no tokenizer, so the run has none
            shutil.copytree(folder, place, dirs_exist_ok=True)
        (place / "chat_template.jinja").write_text(CHAT_TEMPLATE)
        shutil.copyfile(work / "config.json", place / "config.json")  # in the spelling of the original
        if name == DAMAGED_MODEL:
            zero_rows(place / "model.safetensors", "backbone.embeddings.weight", DAMAGED_ROWS)
