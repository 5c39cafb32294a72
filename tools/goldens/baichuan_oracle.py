"""Baichuan and Baichuan 2 (model_type baichuan), whose classes are not part of transformers, from the parts of its Llama.

Queries, keys and values are one projection W_pack. Positions are a rotary embedding where the config has max_position_embeddings,
else ALiBi. The head's rows are divided by their lengths (NormHead, as in training) where the config has z_loss_weight. The loss then
has that weight times the square of each labelled row's largest logit; the authors' code takes the mean over all rows instead.
"""

import math
import types

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama


def slopes_of(heads):
    """The slopes of the heads as the authors of ALiBi choose them: for another number than a power of two, of the next lower
    power, and every second one of the next higher power."""
    def of_power(n):
        first = 2.0 ** (-(2.0 ** -(math.log2(n) - 3)))
        return [first * first**i for i in range(n)]

    if math.log2(heads).is_integer():
        return of_power(heads)
    lower = 2 ** math.floor(math.log2(heads))
    return of_power(lower) + of_power(2 * lower)[0::2][: heads - lower]


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config.hidden_size
        self.heads, self.head_dim = config.num_attention_heads, width // config.num_attention_heads
        self.W_pack = nn.Linear(width, 3 * width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x, turned, bias):
        rows, length, width = x.shape
        q, k, v = (t.reshape(rows, length, self.heads, self.head_dim).transpose(1, 2) for t in self.W_pack(x).split(width, -1))
        if turned is not None:
            q, k = modeling_llama.apply_rotary_pos_emb(q, k, *turned)
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(self.head_dim) + bias, -1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(rows, length, width))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = modeling_llama.LlamaMLP(config)
        self.input_layernorm = modeling_llama.LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = modeling_llama.LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x, turned, bias):
        x = x + self.self_attn(self.input_layernorm(x), turned, bias)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, config, alibi):
        super().__init__()
        self.slopes = slopes_of(config.num_attention_heads) if alibi else None
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = modeling_llama.LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = modeling_llama.LlamaRotaryEmbedding(config)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        positions = torch.arange(ids.shape[1])
        distance = (positions[None, :] - positions[:, None]).to(x.dtype)  # of key j from query i: j - i
        bias = torch.zeros_like(distance).masked_fill(distance > 0, torch.finfo(x.dtype).min)[None]
        turned = None
        if self.slopes is None:
            turned = self.rotary_emb(x, position_ids=positions[None])
        else:
            bias = bias + torch.tensor(self.slopes, dtype=x.dtype)[:, None, None] * distance.clamp(max=0)
        for layer in self.layers:
            x = layer(x, turned, bias[None])
        return self.norm(x)


class BaichuanForCausalLM(nn.Module):
    """`keys`: config.json."""

    def __init__(self, keys):
        super().__init__()
        other = ("architectures", "model_type", "model_max_length", "z_loss_weight")
        self.config = LlamaConfig(**{k: v for k, v in keys.items() if v is not None and k not in other})
        self.normalizes = "z_loss_weight" in keys
        self.z_loss_weight = keys.get("z_loss_weight", 0)
        self.model = Body(self.config, alibi="max_position_embeddings" not in keys)
        self.lm_head = nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False)

    def forward(self, input_ids, use_cache=False):
        assert not use_cache
        weight = self.lm_head.weight
        weight = nn.functional.normalize(weight) if self.normalizes else weight
        return types.SimpleNamespace(logits=nn.functional.linear(self.model(input_ids), weight))
