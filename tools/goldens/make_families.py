#!/usr/bin/env python3
"""Makes the goldens of model families beside NemotronH: small random models, what Hugging Face computes for them, and 20 steps.

    python tools/goldens/make_families.py               rewrite tests/goldens/<case> and tests/goldens/rope (the same bytes)
    python tools/goldens/make_families.py --report      also print float32 noise

Each case has the files of a case of make_goldens.py (logits, loss and gradients in float64) and of train20 (tokens, recipe,
losses and norms of 20 AdamW steps in float64). `rope/frequencies.json` has inverse frequencies and attention factors as
transformers computes them, in float64, for every type of rotary embedding.

float64 is not enough by itself: the classes cast to float32 in norms, softmax and rotary tables. Here these are casts to float64.
"""

import argparse
import contextlib
import copy
import importlib
import json
import math
import pathlib
import shutil

import peft
import safetensors.torch
import torch
import transformers
from transformers import LlamaConfig, modeling_rope_utils
from transformers.models.llama import modeling_llama

import baichuan_oracle
import decilm_oracle
import model_files as files
import oracle
from make_goldens import DEFAULT_OUT, distance
from make_train20 import GLOBAL_BATCH, LOCAL_BATCH, MAX_NORM, OPTIMIZER, RECIPE, SCHEDULE, STEPS, learnable_rows, learning_rate

SEQ = 13
BATCH = 2
TRAIN_SEQ = 8

SMALL = dict(
    vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, rms_norm_eps=1e-5,
    max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=None,
)

# The model_type of a family, and its classes without "Config" and "ForCausalLM".
CLASSES = {"llama": "Llama", "mistral": "Mistral", "ministral3": "Ministral3", "qwen2": "Qwen2", "qwen3": "Qwen3",
           "qwen3_moe": "Qwen3Moe", "nemotron-nas": "DeciLM", "gemma3_text": "Gemma3", "phi": "Phi", "baichuan": "Baichuan",
           "gemma4_text": "Gemma4", "gemma4_unified_text": "Gemma4Unified", "falcon_h1": "FalconH1", "qwen3_5_text": "Qwen3_5", "qwen3_5_moe_text": "Qwen3_5Moe"}
CONFIGS = {"gemma3_text": "Gemma3Text", "gemma4_text": "Gemma4Text", "gemma4_unified_text": "Gemma4UnifiedText", "qwen3_5_text": "Qwen3_5Text", "qwen3_5_moe_text": "Qwen3_5MoeText"}  # where the class of the config has another name
MODULES = {"gemma3_text": "gemma3", "gemma4_text": "gemma4", "gemma4_unified_text": "gemma4_unified", "qwen3_5_text": "qwen3_5", "qwen3_5_moe_text": "qwen3_5_moe"}  # where the module of the classes has another name than the family
# Of families that transformers does not have.
ORACLES = {"nemotron-nas": decilm_oracle.DeciLMForCausalLM, "baichuan": baichuan_oracle.BaichuanForCausalLM}

# What a layer of DeciLM has.
ABSENT = dict(n_heads_in_group=None, ffn_mult=None, no_op=True, replace_with_linear=False)
LINEAR = {**ABSENT, "no_op": False, "replace_with_linear": True}
GROUPS_OF_1, GROUPS_OF_2 = ({**ABSENT, "no_op": False, "n_heads_in_group": n} for n in (1, 2))
WIDE = {**ABSENT, "no_op": False, "ffn_mult": 1.5}

# Of Falcon-H1, each factor another one; exact in float32, in which the class keeps those of the projection.
MULTIPLIERS = dict(
    ssm_in_multiplier=0.75, ssm_out_multiplier=1.25, attention_in_multiplier=0.5, attention_out_multiplier=0.625,
    key_multiplier=1.375, mlp_multipliers=[0.875, 1.125], ssm_multipliers=[0.5, 0.75, 1.125, 1.25, 1.5],
    embedding_multiplier=2.0, lm_head_multiplier=0.3,
)
ALL_BIASES = dict(attention_bias=True, mlp_bias=True, mamba_proj_bias=True, projectors_bias=True)

# `keys`: of config.json. `by_hand`: config.json has exactly these keys, in spellings of older releases; else the class saves it.
# `family`: where it is not the name of the case. `activation`: the key of config.json and its value, else the SiLU.
# `nulls`: keys that config.json has with a null.
CASES = {
    "llama": dict(
        seed=1,
        by_hand=False,
        keys=dict(
            num_key_value_heads=2, head_dim=8, tie_word_embeddings=False,
            rope_parameters=dict(
                rope_type="llama3", rope_theta=100.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        ),
    ),
    # One key and value head for each query head, and a head_dim that follows from the hidden size.
    "llama_biases": dict(
        family="llama",
        seed=2,
        by_hand=True,
        keys=dict(
            attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rope_theta=100.0,
            rope_scaling=dict(
                type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=4.0, beta_slow=1.0,
            ),
        ),
    ),
    # A window that no multiple of the sequence is.
    "mistral": dict(
        seed=3,
        by_hand=True,
        keys=dict(num_key_value_heads=2, tie_word_embeddings=False, rope_theta=100.0, sliding_window=4),
    ),
    # Positions in several steps of the scale.
    "ministral3": dict(
        seed=4,
        by_hand=False,
        keys=dict(
            num_key_value_heads=2, head_dim=8, tie_word_embeddings=False,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=4, beta_fast=4.0,
                beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3,
            ),
        ),
    ),
    # The second layer slides, the first does not.
    "qwen2": dict(
        seed=5,
        by_hand=True,
        keys=dict(
            num_key_value_heads=2, tie_word_embeddings=True, rope_theta=100.0, use_sliding_window=True, sliding_window=4,
            max_window_layers=1,
        ),
    ),
    "qwen3": dict(
        seed=6,
        by_hand=False,
        keys=dict(
            num_key_value_heads=2, head_dim=8, tie_word_embeddings=False, attention_bias=True,
            rope_parameters=dict(rope_type="default", rope_theta=100.0),
        ),
    ),
    # Weights of a token's experts that add up to 1; a file with a tensor for each expert.
    "qwen3_moe": dict(
        seed=30,
        by_hand=True,
        experts_apart=True,
        keys=dict(
            num_key_value_heads=2, head_dim=8, tie_word_embeddings=False, rope_theta=100.0, num_experts=4, num_experts_per_tok=2,
            moe_intermediate_size=6, norm_topk_prob=True,
        ),
    ),
    # Layer 1 is dense.
    "qwen3_moe_dense": dict(
        family="qwen3_moe",
        seed=31,
        by_hand=False,
        keys=dict(
            num_hidden_layers=3, intermediate_size=8, num_key_value_heads=2, head_dim=4, tie_word_embeddings=True, attention_bias=True,
            num_experts=3, num_experts_per_tok=2, moe_intermediate_size=4, norm_topk_prob=False, mlp_only_layers=[1],
            rope_parameters=dict(rope_type="default", rope_theta=100.0),
        ),
    ),
    # Two value heads for each key head. The norm behind the delta rule makes the first token's result nearly a sign, (q k) / |q k|
    # times the value, which a large epsilon smoothes: with a small one runs in float32 and float64 part after a few steps.
    "qwen3_5": dict(
        family="qwen3_5_text",
        seed=32,
        by_hand=False,
        keys=dict(
            num_hidden_layers=3, intermediate_size=8, num_key_value_heads=2, head_dim=8, tie_word_embeddings=False, attention_bias=True,
            rms_norm_eps=0.1, layer_types=["linear_attention", "full_attention", "linear_attention"], linear_num_key_heads=2,
            linear_num_value_heads=4, linear_key_head_dim=6, linear_value_head_dim=5, linear_conv_kernel_dim=3,
            rope_parameters=dict(
                rope_type="default", rope_theta=100.0, partial_rotary_factor=0.5, mrope_section=[1, 1, 0], mrope_interleaved=True),
        ),
    ),
    "qwen3_5_moe": dict(
        family="qwen3_5_moe_text",
        seed=33,
        by_hand=True,
        experts_apart=True,
        keys=dict(
            intermediate_size=None, num_key_value_heads=2, head_dim=4, tie_word_embeddings=True, full_attention_interval=2, rms_norm_eps=0.1,
            linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=4, linear_value_head_dim=4, num_experts=4,
            num_experts_per_tok=2, moe_intermediate_size=4, shared_expert_intermediate_size=6, attn_output_gate=True,
            rope_parameters=dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.5),
        ),
    ),
    # Every form of a layer. The width of an MLP is a multiple of 256, so the model is narrow otherwise.
    "decilm": dict(
        family="nemotron-nas",
        seed=8,
        by_hand=True,
        keys=dict(
            hidden_size=8, num_attention_heads=4, num_hidden_layers=None, intermediate_size=None, tie_word_embeddings=False,
            rope_theta=100.0,
            block_configs=[
                dict(attention=attention, ffn=ffn) for attention, ffn in [
                    (GROUPS_OF_2, WIDE), (ABSENT, WIDE), (GROUPS_OF_1, ABSENT), (LINEAR, LINEAR), (ABSENT, ABSENT),
                ]
            ],
        ),
    ),
    # Every third layer sees all keys; the last one slides.
    "gemma3": dict(
        family="gemma3_text",
        seed=27,
        by_hand=True,
        activation=dict(hidden_activation="gelu_pytorch_tanh"),
        nulls=("pad_token_id",),  # the class has one, whose row of the embeddings gets no gradient of look-ups
        keys=dict(
            num_hidden_layers=4, num_key_value_heads=2, intermediate_size=8, rope_theta=100.0, rope_local_base_freq=20.0,
            head_dim=8,
            rope_scaling=dict(rope_type="linear", factor=8.0), sliding_window=4, sliding_window_pattern=3,
            query_pre_attn_scalar=24, final_logit_softcapping=5.0,
        ),
    ),
    # The layers that slide have a stretched rotary embedding, too.
    "gemma3_biases": dict(
        family="gemma3_text",
        seed=10,
        by_hand=False,
        keys=dict(
            num_key_value_heads=1, head_dim=4, intermediate_size=8, tie_word_embeddings=False, attention_bias=True,
            sliding_window=3, query_pre_attn_scalar=8, layer_types=["full_attention", "sliding_attention"],
            rope_parameters=dict(
                full_attention=dict(rope_type="default", rope_theta=100.0),
                sliding_attention=dict(rope_type="linear", rope_theta=20.0, factor=2.0),
            ),
        ),
    ),
    # Everything at once: layers of both types read keys and values of others. Some channels of the wide heads turn, the others do not.
    "gemma4": dict(
        family="gemma4_text",
        seed=40,
        by_hand=False,
        keys=dict(
            hidden_size=8, intermediate_size=5, num_hidden_layers=5, num_key_value_heads=2, head_dim=4, global_head_dim=8,
            num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=4, rms_norm_eps=0.1,
            layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            num_kv_shared_layers=2, use_double_wide_mlp=True, hidden_size_per_layer_input=4, vocab_size_per_layer_input=40,
            enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=3, final_logit_softcapping=5.0,
            rope_parameters=dict(
                full_attention=dict(rope_type="proportional", rope_theta=100.0, partial_rotary_factor=0.5),
                sliding_attention=dict(rope_type="default", rope_theta=20.0),
            ),
        ),
    ),
    # Every option off, and biases.
    "gemma4_unified": dict(
        family="gemma4_unified_text",
        seed=41,
        by_hand=True,
        activation=dict(hidden_activation="gelu_pytorch_tanh"),
        nulls=("pad_token_id",),
        keys=dict(
            hidden_size=8, intermediate_size=6, num_hidden_layers=2, num_key_value_heads=2, head_dim=4, global_head_dim=8,
            attention_bias=True, sliding_window=4, layer_types=["sliding_attention", "full_attention"], tie_word_embeddings=False,
        ),
    ),
    # Half of the channels of a head turn.
    "phi": dict(
        seed=11,
        by_hand=True,
        activation=dict(hidden_act="gelu_new"),
        keys=dict(num_key_value_heads=2, rms_norm_eps=None, layer_norm_eps=1e-5, rope_theta=100.0),
    ),
    "phi_norms": dict(
        family="phi",
        seed=12,
        by_hand=False,
        keys=dict(
            qk_layernorm=True, rms_norm_eps=None, layer_norm_eps=1e-5,
            rope_parameters=dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=1.0),
        ),
    ),
    # Baichuan 2 of 7B.
    "baichuan": dict(
        seed=13,
        by_hand=True,
        keys=dict(tie_word_embeddings=False, z_loss_weight=0.05),
    ),
    # Baichuan of 13B: a number of heads that is no power of two.
    "baichuan_alibi": dict(
        family="baichuan",
        seed=14,
        by_hand=True,
        keys=dict(
            hidden_size=24, num_attention_heads=6, tie_word_embeddings=False, max_position_embeddings=None,
            model_max_length=64,
        ),
    ),
    # A gate without a norm, as in published models. Chunks that do not divide the sequence.
    "falcon_h1": dict(
        seed=15,
        by_hand=True,
        nulls=("pad_token_id",),  # the class has one, whose row of the embeddings gets no gradient of look-ups
        keys=dict(
            hidden_size=8, intermediate_size=12, num_key_value_heads=2, head_dim=4, tie_word_embeddings=False, rope_theta=100.0,
            mamba_d_ssm=24, mamba_n_heads=6, mamba_d_head=4, mamba_n_groups=2, mamba_d_state=4, mamba_d_conv=4,
            mamba_chunk_size=4, mamba_rms_norm=False, mamba_norm_before_gate=False, mamba_conv_bias=True, **MULTIPLIERS,
        ),
    ),
    "falcon_h1_norm_after": dict(
        family="falcon_h1",
        seed=16,
        by_hand=False,
        keys=dict(
            hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_key_value_heads=2, tie_word_embeddings=False,
            mamba_d_ssm=24, mamba_n_heads=6, mamba_d_head=4, mamba_n_groups=2, mamba_d_state=4, mamba_chunk_size=4,
            mamba_rms_norm=True, mamba_norm_before_gate=False,
            rope_parameters=dict(rope_type="default", rope_theta=100.0), **ALL_BIASES, **MULTIPLIERS,
        ),
    ),
    # Widths that follow from others.
    "falcon_h1_norm_before": dict(
        family="falcon_h1",
        seed=17,
        by_hand=True,
        nulls=("pad_token_id", "mamba_d_ssm"),
        keys=dict(
            hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_key_value_heads=1, tie_word_embeddings=True,
            rope_theta=100.0, mamba_d_ssm=None, mamba_n_heads=4, mamba_d_head="auto", mamba_n_groups=2, mamba_d_state=5,
            mamba_d_conv=3, mamba_chunk_size=4, mamba_rms_norm=True, mamba_conv_bias=False, **ALL_BIASES, **MULTIPLIERS,
        ),
    ),
}


def family_of(name):
    return CASES[name].get("family", name)


def class_of(family, ending):
    name = CONFIGS.get(family, CLASSES[family]) if ending == "Config" else CLASSES[family]
    return getattr(transformers, name + ending)


def modeling_of(family):
    module = MODULES.get(family, family)
    return importlib.import_module(f"transformers.models.{module}.modeling_{module}")

ROPES = [
    dict(rope_type="default", rope_theta=10000.0),
    dict(rope_type="linear", rope_theta=10000.0, factor=4.0),
    dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0),
    dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
         original_max_position_embeddings=8192),
    dict(rope_type="llama3", rope_theta=100.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
         original_max_position_embeddings=32),
    dict(rope_type="yarn", rope_theta=10000.0, factor=16.0, original_max_position_embeddings=4096),
    dict(rope_type="yarn", rope_theta=1000000.0, factor=0.25, original_max_position_embeddings=16384),
    dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=16, beta_fast=4.0, beta_slow=1.0,
         truncate=False, mscale=1.0, mscale_all_dim=0.5),
    dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=16, attention_factor=1.25),
    dict(rope_type="longrope", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64,
         short_factor=[1.0 + 0.1 * i for i in range(8)], long_factor=[2.0 + 0.5 * i for i in range(8)]),
    dict(rope_type="longrope", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64, attention_factor=1.5,
         short_factor=[1.0] * 8, long_factor=[4.0] * 8),
    dict(rope_type="proportional", rope_theta=1000000.0, partial_rotary_factor=0.25),
    dict(rope_type="proportional", rope_theta=100.0, partial_rotary_factor=0.45, factor=8.0),
    dict(rope_type="proportional", rope_theta=100.0),
]


class WideTorch:
    """The torch module, in which float32 is float64."""

    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def widened():
    modules = (modeling_rope_utils, *(modeling_of(family) for family in CLASSES if family not in ORACLES))
    for module in modules:
        module.torch = WideTorch()
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        for module in modules:
            module.torch = torch
        del torch.Tensor.float


def frequencies(config, longest, rotary=modeling_llama.LlamaRotaryEmbedding, **layer_type):
    """Inverse frequencies and attention factor in float64. `rotary`: the class of the family's rotary embedding."""
    parameters = config.rope_parameters
    kind = parameters[layer_type["layer_type"]]["rope_type"] if layer_type else parameters["rope_type"]
    with widened():
        if kind == "default":
            made = rotary.compute_default_rope_parameters(config, **layer_type)
        else:
            made = modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=longest, **layer_type)
    return made[0].double(), float(made[1])


def widen_rotary(rotary, config):
    for layer_type in getattr(rotary, "layer_types", None) or ():
        of_type = config.per_layer_config[layer_type] if config.is_heterogeneous else config
        inverse, factor = frequencies(of_type, SEQ, type(rotary), layer_type=layer_type)
        setattr(rotary, f"{layer_type}_inv_freq", inverse)
        setattr(rotary, f"{layer_type}_original_inv_freq", inverse)
        setattr(rotary, f"{layer_type}_attention_scaling", factor)
    if hasattr(rotary, "inv_freq"):
        rotary.inv_freq, rotary.attention_scaling = frequencies(config, SEQ, type(rotary))
        rotary.original_inv_freq = rotary.inv_freq


def empty_model(directory):
    family = family_of(directory.name)
    if family in ORACLES:
        return ORACLES[family](json.loads((directory / "config.json").read_text(encoding="utf-8")))
    return class_of(family, "ForCausalLM")(class_of(family, "Config").from_pretrained(directory))


def load(directory, dtype):
    family = family_of(directory.name)
    if family in ORACLES:
        model = empty_model(directory)
        model.load_state_dict(safetensors.torch.load_file(directory / "model.safetensors"))
    else:
        model, info = class_of(family, "ForCausalLM").from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
        problems = {key: value for key, value in info.items() if value}
        if problems:
            raise RuntimeError(f"{directory}: Hugging Face did not load every tensor: {problems}")
    model = model.to(dtype).train()
    if dtype == torch.float64:
        widen_rotary(model.model.rotary_emb, model.config)
    return model


def logits_of(model, ids):
    with widened() if model.lm_head.weight.dtype == torch.float64 else contextlib.nullcontext():
        logits = model(input_ids=ids, use_cache=False).logits
    assert logits.dtype == model.lm_head.weight.dtype
    return logits


def z_loss_sum(model, logits, labels):
    """Of the labelled rows; 0 but for Baichuan 2."""
    return getattr(model, "z_loss_weight", 0) * logits[labels != oracle.IGNORED].amax(-1).square().sum()


def forward_backward(model, ids, labels):
    model.zero_grad(set_to_none=True)
    logits = logits_of(model, ids)
    loss = oracle.mean_loss(logits, labels) + z_loss_sum(model, logits, labels) / (labels != oracle.IGNORED).sum()
    loss.backward()
    return logits.detach(), loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}


def random_value(name, shape, gen):
    normal = torch.randn(shape, generator=gen, dtype=torch.float64)
    if name.endswith(("norm.weight", "layernorm_1.weight", "layernorm_2.weight", "_scale", ".scale", "layer_scalar")):
        return 0.5 + torch.rand(shape, generator=gen, dtype=torch.float64)
    if name.endswith("bias"):
        return 0.3 * normal
    if name.endswith("embed_tokens.weight"):
        return normal
    return 1.5 / math.sqrt(shape[-1]) * normal


def write_config(directory, case):
    keys = {**SMALL, **case["keys"]}
    family = family_of(directory.name)
    architecture = CLASSES[family] + "ForCausalLM"
    if case["by_hand"]:
        files.write_json(directory / "config.json", {
            "architectures": [architecture], "model_type": family, **case.get("activation", dict(hidden_act="silu")),
            **{k: v for k, v in keys.items() if v is not None or k in case.get("nulls", ())}})
        return
    config = class_of(family, "Config")(**{k: v for k, v in keys.items() if v is not None or k == "pad_token_id"})
    config.architectures = [architecture]
    config.save_pretrained(directory)


def write_model(directory, gen):
    with torch.device("meta"):
        model = empty_model(directory)
        shapes = {n: t.shape for n, t in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        shapes.pop("lm_head.weight", None)
    tensors = {n: random_value(n, shapes[n], gen).float() for n in sorted(shapes)}
    files.write_model(directory, as_in_files(directory, tensors), shards=1)


def as_in_files(directory, tensors):
    """With tensors of each expert in the place of the stacks, as Hugging Face saves them, where the case says so."""
    if not CASES[directory.name].get("experts_apart"):
        return tensors
    apart = {}
    for name, tensor in tensors.items():
        module, _, member = name.rpartition(".")
        if not module.endswith(".experts"):
            apart[name] = tensor
            continue
        for number, expert in enumerate(tensor):
            parts = zip(("gate_proj", "up_proj"), expert.chunk(2)) if member == "gate_up_proj" else [(member, expert)]
            for part, value in parts:
                apart[f"{module}.{number}.{part}.weight"] = value.contiguous()
    return apart


def one_step(model, optimizer, ids, labels, rate):
    count = (labels != oracle.IGNORED).sum().item()
    optimizer.zero_grad(set_to_none=True)
    loss = 0.0
    for first in range(0, GLOBAL_BATCH, LOCAL_BATCH):
        part = slice(first, first + LOCAL_BATCH)
        logits = logits_of(model, ids[part])
        total = oracle.token_loss_sum(logits, labels[part]) + z_loss_sum(model, logits, labels[part])
        (total / count).backward()
        loss += total.item() / count
    parameters = list(model.parameters())
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in parameters))
    if MAX_NORM / (norm + 1e-6) < 1.0:
        for p in parameters:
            p.grad.mul_(MAX_NORM / (norm + 1e-6))
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return loss, norm, count


def train(directory, tokens, dtype):
    model = load(directory, dtype)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=OPTIMIZER["lr"], betas=tuple(OPTIMIZER["betas"]), eps=OPTIMIZER["eps"],
        weight_decay=OPTIMIZER["weight_decay"], foreach=False, fused=False)
    records = []
    for step in range(STEPS):
        rows = slice(step * GLOBAL_BATCH, (step + 1) * GLOBAL_BATCH)
        rate = learning_rate(step)
        loss, norm, count = one_step(model, optimizer, tokens["input_ids"][rows], tokens["labels"][rows], rate)
        records.append(dict(step=step, loss=loss, grad_norm=norm, lr=learning_rate(step + 1), lr_used=rate,
                            num_label_tokens=count))
    return records


def make_case(name, case, out, report):
    directory = out / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    gen = torch.Generator().manual_seed(case["seed"])
    write_config(directory, case)
    write_model(directory, gen)
    ids, labels = files.random_input(gen, BATCH, SEQ, SMALL["vocab_size"])
    files.write_tensors(directory / "input.safetensors", {"input_ids": ids, "labels": labels})
    model = load(directory, torch.float64)
    logits, loss, grads = forward_backward(model, ids, labels)
    grads = as_in_files(directory, grads)
    expected = {"logits": logits, "loss": loss, **{f"grad.{n}": g for n, g in grads.items()}}
    files.write_tensors(directory / "expected.safetensors", {n: t.float() for n, t in expected.items()})
    rows, row_labels = learnable_rows(gen, STEPS * GLOBAL_BATCH, TRAIN_SEQ, SMALL["vocab_size"])
    tokens = {"input_ids": rows, "labels": row_labels}
    files.write_tensors(directory / "tokens.safetensors", tokens)
    (directory / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    records = train(directory, tokens, torch.float64)
    files.write_json(directory / "expected.json", records)
    size = sum(f.stat().st_size for f in directory.iterdir())
    print(f"{name}: loss {loss.item():.4f}, 20 steps {records[0]['loss']:.4f} -> {records[-1]['loss']:.4f}, {size / 1e3:.0f} kB")
    if report:
        logits32, _, grads32 = forward_backward(load(directory, torch.float32), ids, labels)
        grads32 = as_in_files(directory, grads32)
        worst = max(distance(grads32[n], g) for n, g in grads.items())
        steps32 = train(directory, tokens, torch.float32)
        drift = max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(steps32, records))
        print(f"    float32: logits {distance(logits32, logits):.1e}, gradients {worst:.1e}, 20 losses {drift:.1e}")


# The layers that get an adapter of PEFT.
ADAPTED = {
    "llama": ["q_proj", "down_proj"], "mistral": ["v_proj", "gate_proj"], "ministral3": ["k_proj", "up_proj"],
    "qwen2": ["q_proj", "o_proj"], "qwen3": ["k_proj", "o_proj"], "gemma3": ["q_proj", "down_proj"],
    "qwen3_moe": ["v_proj"], "qwen3_5": ["in_proj_qkv", "in_proj_b", "q_proj"], "gemma3_biases": ["o_proj", "lm_head"],
    "gemma4": ["k_proj", "per_layer_projection", "per_layer_model_projection"], "phi": ["k_proj", "dense", "fc1"], "phi_norms": ["fc2", "lm_head"],
    # PEFT refuses out_proj and conv1d of this family.
    "falcon_h1": ["in_proj", "o_proj"],
}
ADAPTED_STACKS = {"qwen3_moe": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}


def make_adapter(name, targets, out):
    """A random adapter of a case, and the logits of PEFT in float64 for the input of the case."""
    source, directory = out / name, out / "adapters" / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    gen = torch.Generator().manual_seed(CASES[name]["seed"] + 1000)
    stacks = dict(target_parameters=ADAPTED_STACKS[name]) if name in ADAPTED_STACKS else {}
    model = peft.get_peft_model(
        load(source, torch.float64), peft.LoraConfig(r=2, lora_alpha=3, target_modules=targets, **stacks))
    model.eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_" in key:
                p.copy_((0.3 * torch.randn(p.shape, generator=gen, dtype=torch.float64)).float())
    tensors = peft.get_peft_model_state_dict(model)
    files.write_tensors(directory / "adapter_model.safetensors", {k: v.float().contiguous() for k, v in tensors.items()})
    files.write_json(directory / "adapter_config.json", {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 3, "target_modules": targets, "bias": "none",
        **(stacks and {**stacks, "peft_version": peft.__version__})})
    ids = safetensors.torch.load_file(source / "input.safetensors")["input_ids"]
    with torch.no_grad(), widened():
        logits = model(input_ids=ids, use_cache=False).logits
    assert logits.dtype == torch.float64
    files.write_tensors(directory / "expected.safetensors", {"logits": logits.float()})
    print(f"adapters/{name}: {sum(f.stat().st_size for f in directory.iterdir()) / 1e3:.0f} kB")


def make_frequencies(out):
    directory = out / "rope"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    cases = []
    for rope in ROPES:
        for longest in (16, 200) if rope["rope_type"] in ("dynamic", "longrope") else (16,):
            config = LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=128,
                                 rope_parameters=copy.deepcopy(rope))
            inverse, factor = frequencies(config, longest)
            cases.append(dict(rope_parameters=rope, max_position_embeddings=128, head_dim=16, longest=longest,
                              inverse=inverse.tolist(), attention_factor=factor))
    text = ",\n".join(json.dumps(case) for case in cases)
    (directory / "frequencies.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=DEFAULT_OUT, help="directory of the cases")
    parser.add_argument("--report", action="store_true", help="print how far plain float32 is from float64")
    parser.add_argument("--only", nargs="*", choices=CASES, default=CASES, help="these cases alone")
    args = parser.parse_args()
    oracle.check_version()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if args.only is CASES:
        make_frequencies(args.out)
    for name in args.only:
        make_case(name, CASES[name], args.out, args.report)
        if name in ADAPTED:
            make_adapter(name, ADAPTED[name], args.out)


if __name__ == "__main__":
    main()
