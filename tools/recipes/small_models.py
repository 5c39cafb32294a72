"""Small stand-ins for the models that AutoModel's recipes name, in the form of a local cache of the Hugging Face Hub.

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
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": {"hybrid_override_pattern": "MEMEMEM*E", **experts(64, 24), **ONE_DEPTH},
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": {
        "hidden_size": 32,
        "layers_block_type": [WORDS[letter] for letter in ULTRA],
        **experts(64, 16),
        "num_nextn_predict_layers": 1,
        "mtp_layers_block_type": ["attention", "moe"],
    },
    # The Mamba heads of these two have a width that is no power of two, as in the originals.
    "nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16": {"hybrid_override_pattern": "M-M-M-MM-M-M*-M-", "mamba_head_dim": 20,
                                              "chunk_size": 64},
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": {"hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-", "mamba_head_dim": 20},
}

# Rows of the embeddings that the stand-in of this model has zeros in, for the recipe that repairs such rows.
DAMAGED_MODEL = "nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16"
DAMAGED_ROWS = range(2001, 2004)

# What the stand-ins of the families without Mamba have in common.
DECODER = {
    "torch_dtype": "bfloat16", "vocab_size": 2048, "hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 4, "intermediate_size": 64, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}
FOR_FOUR_RANKS = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4}  # that divide the heads


def decoder(architecture, model_type, **own):
    return {**DECODER, "architectures": [architecture], "model_type": model_type, **own}


def llama(factor, **own):
    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 2048}
    return decoder("LlamaForCausalLM", "llama", rope_scaling=scaling, **own)


def qwen2(**own):
    return decoder("Qwen2ForCausalLM", "qwen2", use_sliding_window=False, sliding_window=4096, **own)


def qwen3(**own):
    return decoder("Qwen3ForCausalLM", "qwen3", head_dim=16, attention_bias=False, use_sliding_window=False, **own)


def qwen3_moe(**own):
    # The recipes divide the experts over 8 ranks and cut the layers into stages of two.
    return decoder("Qwen3MoeForCausalLM", "qwen3_moe", **{
        "head_dim": 16, "attention_bias": False, "use_sliding_window": False, "num_hidden_layers": 8, "num_experts": 16,
        "num_experts_per_tok": 4, "moe_intermediate_size": 24, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "router_aux_loss_coef": 0.001, "output_router_logits": False, **own})


def qwen3_5_moe(**own):
    # Two key heads with four value heads: Gated DeltaNet in three of four layers.
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_interleaved": True,
            "mrope_section": [1, 1, 0]}
    layers = own.get("num_hidden_layers", 8)
    return decoder("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", **{
        "head_dim": 16, "attention_bias": False, "attn_output_gate": True, "num_hidden_layers": layers, "rope_theta": None,
        "rope_parameters": rope, "intermediate_size": None, "num_experts": 16, "num_experts_per_tok": 4,
        "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * (layers // 4), **own})


def falcon_h1(**own):
    multipliers = {
        "embedding_multiplier": 5.656854249492381, "lm_head_multiplier": 0.0390625, "key_multiplier": 0.39062499999999994,
        "attention_in_multiplier": 1.0, "attention_out_multiplier": 0.9375, "ssm_in_multiplier": 1.25,
        "ssm_out_multiplier": 0.23570226039551587, "mlp_multipliers": [0.8838834764831844, 0.5859375],
        "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738]}
    return decoder("FalconH1ForCausalLM", "falcon_h1", **multipliers, **{
        "head_dim": 16, "rope_theta": 1e11, "pad_token_id": 0, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_ssm": 64,
        "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_chunk_size": 32, "mamba_conv_bias": True,
        "mamba_proj_bias": False, "mamba_rms_norm": False, "mamba_norm_before_gate": False, "projectors_bias": False, **own})


def gemma3():
    return decoder("Gemma3ForCausalLM", "gemma3_text", num_hidden_layers=8, num_key_value_heads=1, head_dim=16,
                   query_pre_attn_scalar=16, hidden_activation="gelu_pytorch_tanh", sliding_window=64,
                   layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 2, rope_theta=1e6,
                   rope_local_base_freq=1e4, tie_word_embeddings=True, pad_token_id=0)


def pruned(attention=None, ffn=None):
    """A layer of DeciLM: query heads for each key and value head, and the factor of the MLP's width; None: absent."""
    return {
        "attention": {"n_heads_in_group": attention, "no_op": attention is None, "replace_with_linear": False},
        "ffn": {"ffn_mult": ffn, "no_op": ffn is None, "replace_with_linear": False},
    }


# Name of the Hub to the whole config.
OTHER_FAMILIES = {
    "nvidia/Llama-3.1-Nemotron-Nano-8B-v1": decoder("LlamaForCausalLM", "llama"),
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1_5": decoder(
        "DeciLMForCausalLM", "nemotron-nas", num_key_value_heads=None, intermediate_size=None,
        block_configs=[pruned(2, 2.625), pruned(2, 1.0), pruned(None, 1.0), pruned(2, 5.25)]),
    "meta-llama/Llama-3.1-8B": llama(8.0),
    "meta-llama/Llama-3.1-8B-Instruct": llama(8.0),
    "meta-llama/Llama-3.2-1B": llama(32.0, tie_word_embeddings=True),
    "meta-llama/Llama-3.2-1B-Instruct": llama(32.0, tie_word_embeddings=True),
    "meta-llama/Llama-3.2-3B-Instruct": llama(32.0, tie_word_embeddings=True),
    "meta-llama/Llama-3.3-70B-Instruct": llama(8.0, num_hidden_layers=16, **FOR_FOUR_RANKS),
    "Qwen/Qwen2.5-0.5B": qwen2(tie_word_embeddings=True),
    "Qwen/Qwen2.5-0.5B-Instruct": qwen2(tie_word_embeddings=True),
    "Qwen/Qwen2.5-7B": qwen2(),
    "Qwen/Qwen2.5-7B-Instruct": qwen2(),
    "Qwen/Qwen2.5-32B-Instruct": qwen2(num_hidden_layers=16),
    "Qwen/QwQ-32B": qwen2(**FOR_FOUR_RANKS),
    "Qwen/Qwen3-0.6B": qwen3(tie_word_embeddings=True),
    "Qwen/Qwen3-8B": qwen3(),
    "Qwen/Qwen3-32B": qwen3(),
    "Qwen/Qwen3-4B-Base": qwen3(tie_word_embeddings=True),
    "Qwen/Qwen3-30B-A3B": qwen3_moe(),
    "Qwen/Qwen3-30B-A3B-Base": qwen3_moe(),
    "Qwen/Qwen3-235B-A22B": qwen3_moe(num_experts=32, num_hidden_layers=16),
    "Qwen/Qwen3-30B-A3B-Thinking-2507": qwen3_moe(),
    "Qwen/Qwen3.8-2.4T-A95B": qwen3_5_moe(num_experts=32),
    "tiiuae/Falcon3-7B-Instruct": decoder("LlamaForCausalLM", "llama", head_dim=16, rope_theta=1000042.0),
    "tiiuae/Falcon-H1-0.5B-Instruct": falcon_h1(),
    "tiiuae/Falcon-H1-1.5B-Deep-Instruct": falcon_h1(num_hidden_layers=8),
    "tiiuae/Falcon-H1-7B-Instruct": falcon_h1(mamba_d_head=16, mamba_d_ssm=128),
    "tiiuae/Falcon-H1-34B-Instruct": falcon_h1(mamba_n_groups=2, **FOR_FOUR_RANKS),
    "google/gemma-3-270m": gemma3(),
    "google/functiongemma-270m-it": gemma3(),
    "mistralai/Mistral-7B-v0.1": decoder("MistralForCausalLM", "mistral", sliding_window=64),
    "mistralai/Mistral-Nemo-Base-2407": decoder("MistralForCausalLM", "mistral", head_dim=16, sliding_window=None),
    "microsoft/phi-2": decoder("PhiForCausalLM", "phi", num_key_value_heads=4, partial_rotary_factor=0.4, head_dim=None,
                               layer_norm_eps=1e-5, hidden_act="gelu_new", resid_pdrop=0.1),
    "baichuan-inc/Baichuan2-7B-Chat": decoder("BaichuanForCausalLM", "baichuan", z_loss_weight=0, pad_token_id=0),
}

# Language models in a whole that has tensors of images, too.
WRAPPED = {
    "google/gemma-4-12B": decoder(
        "Gemma4UnifiedForCausalLM", "gemma4_unified_text", num_hidden_layers=8, head_dim=16, global_head_dim=32,
        num_global_key_value_heads=1, attention_k_eq_v=True, hidden_activation="gelu_pytorch_tanh", sliding_window=64,
        layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 2, rope_theta=None, tie_word_embeddings=True, pad_token_id=0,
        final_logit_softcapping=30.0, use_bidirectional_attention="vision"),
    "Qwen/Qwen3.5-35B-A3B": qwen3_5_moe(),
    "mistralai/Ministral-3-3B-Instruct-2512": decoder(
        "Ministral3ForCausalLM", "ministral3", head_dim=16, tie_word_embeddings=True, rope_parameters={
            "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 512, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}),
}
# By the model_type of the language model: type and class of the whole, and how its names of these tensors begin.
WHOLES = {
    "ministral3": ("mistral3", "Mistral3ForConditionalGeneration", ""),
    "gemma4_unified_text": ("gemma4_unified", "Gemma4UnifiedForConditionalGeneration", "model."),
    "qwen3_5_moe_text": ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "model."),
}

# Ministral 3's layers, which are trained to denoise; their vocabulary is that of the tokenizer.
DENOISING = {
    "nvidia/Nemotron-Labs-Diffusion-8B-Base": decoder(
        "NemotronLabsDiffusionModel", "nemotron_labs_diffusion", head_dim=16, mask_token_id=100, block_size=32,
        dlm_paradigm="bidirectional", rope_parameters={
            "rope_type": "yarn", "rope_theta": 1e6, "factor": 0.25, "original_max_position_embeddings": 16384, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}),
}

# Name of the Hub to type and class of models that are refused, which have a tokenizer and these two keys of a config: nothing
# else is ever read.
REFUSED = {
    "google/gemma-7b": ("gemma", "GemmaForCausalLM"),
    "google/gemma-2-9b-it": ("gemma2", "Gemma2ForCausalLM"),
    "microsoft/Phi-3-mini-4k-instruct": ("phi3", "Phi3ForCausalLM"),
    "microsoft/phi-4": ("phi3", "Phi3ForCausalLM"),
    "mistralai/Mixtral-8x7B-v0.1": ("mixtral", "MixtralForCausalLM"),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": ("mixtral", "MixtralForCausalLM"),
    "Qwen/Qwen1.5-MoE-A2.7B": ("qwen2_moe", "Qwen2MoeForCausalLM"),
    "Qwen/Qwen3-VL-235B-A22B-Instruct": ("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration"),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": ("qwen3_next", "Qwen3NextForCausalLM"),
}

CHAT_TEMPLATE = """\
{%- for message in messages %}<|{{ message.role }}|>
{{ message.content }}</s>
{% endfor %}{%- if add_generation_prompt %}<|assistant|>
{% endif %}"""

RECIPE = """\
model: {{_target_: from_config, config: {model}, torch_dtype: bf16{more}}}
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


def read_header(file):
    """Of a safetensors file: its header and the bytes behind it."""
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), bytearray(data[8 + size:])


def write_file(file, header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def zero_rows(file, tensor, rows):
    """Writes zeros into rows of a bf16 matrix."""
    header, data = read_header(file)
    entry = header[tensor]
    if entry["dtype"] != "BF16":
        raise SystemExit(f"{file}: {tensor}: want BF16, got {entry['dtype']}")
    width = 2 * entry["shape"][1]
    start = entry["data_offsets"][0] + rows[0] * width
    data[start:start + width * len(rows)] = bytes(width * len(rows))
    write_file(file, header, data)


def wrap(file, prefix):
    """Gives the tensors the names that they have in the whole, and adds one of the part for images. `prefix`: of the names of both
    parts. Where it is that of the body, the language model's body is not named again."""
    header, data = read_header(file)
    # The head and the metadata keep their names beside a body that has the prefix.
    renamed = {name if name == "__metadata__" or not name.startswith(prefix)
               else f"{prefix}language_model.{name.removeprefix(prefix)}": entry for name, entry in header.items()}
    renamed[f"{prefix}vision_tower.patch_conv.weight"] = {"dtype": "BF16", "shape": [8, 3, 2, 2],
                                                 "data_offsets": [len(data), len(data) + 192]}
    write_file(file, renamed, data + bytes(192))


def stand_in(place, work, config, tokenizer, run_program):
    """Fills the folder `place` with a trained model, its tokenizer and a chat template."""
    work.mkdir(parents=True)
    (work / "config.json").write_text(json.dumps(config))
    more = ", num_nextn_predict_layers: 1" if "num_nextn_predict_layers" in config else ""
    if "dlm_paradigm" in config:
        more += ", dlm_paradigm: autoregressive"
    (work / "recipe.yaml").write_text(RECIPE.format(model=work, more=more, run=work / "run"))
    run_program(["train", str(work / "recipe.yaml")])
    for folder in (work / "run" / "LATEST" / "model", tokenizer):  # mock data need no tokenizer, so the run has none
        shutil.copytree(folder, place, dirs_exist_ok=True)
    (place / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    shutil.copyfile(work / "config.json", place / "config.json")  # in the spelling of the original


def make_models(hub, scratch, tokenizer, run_program):
    """Makes all of them. `run_program(arguments)` runs nemocube and raises where it fails."""
    for name, (model_type, architecture) in REFUSED.items():
        place = snapshot(hub, "models", name)
        shutil.copytree(tokenizer, place, dirs_exist_ok=True)
        (place / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": [architecture]}))
    # Models with the same config share a stand-in.
    made = {}
    nemotron_h = {name: {**BASE, **own} for name, own in NEMOTRON_H.items()}
    for name, config in (nemotron_h | OTHER_FAMILIES | WRAPPED | DENOISING).items():
        place = snapshot(hub, "models", name)
        key = json.dumps(config)
        if key in made:
            shutil.copytree(made[key], place, dirs_exist_ok=True)
            continue
        stand_in(place, scratch / name, config, tokenizer, run_program)
        made[key] = place
        if name == DAMAGED_MODEL:
            zero_rows(place / "model.safetensors", "backbone.embeddings.weight", DAMAGED_ROWS)
        if name in WRAPPED:
            whole_type, architecture, prefix = WHOLES[config["model_type"]]
            wrap(place / "model.safetensors", prefix)
            whole = {"architectures": [architecture], "model_type": whole_type, "text_config": config,
                     "torch_dtype": "bfloat16", "vision_config": {"model_type": "vision"}}
            (place / "config.json").write_text(json.dumps(whole))
