"""DeciLM (model_type nemotron-nas) from the parts of transformers' Llama, which has no such class.

Each layer has an attention and an MLP of its own Llama config; either may be absent, then together with its norm, or one linear
layer.
"""

import copy
import types

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama


def round_up(width, multiple=256):
    return -(-width // multiple) * multiple


class LinearAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.linear_attn = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x, **_):
        return self.linear_attn(x), None


class LinearMlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.linear_mlp = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.linear_mlp(x)


class Layer(nn.Module):
    def __init__(self, config, block, number):
        super().__init__()
        attention, ffn = block["attention"], block["ffn"]
        own = copy.deepcopy(config)
        self.has_attention, self.has_mlp = not attention["no_op"], not ffn["no_op"]
        if self.has_attention:
            self.input_layernorm = modeling_llama.LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
            if attention["replace_with_linear"]:
                self.self_attn = LinearAttention(config)
            else:
                own.num_key_value_heads = config.num_attention_heads // attention["n_heads_in_group"]
                self.self_attn = modeling_llama.LlamaAttention(own, number)
        if self.has_mlp:
            self.post_attention_layernorm = modeling_llama.LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
            if ffn["replace_with_linear"]:
                self.mlp = LinearMlp(config)
            else:
                own.intermediate_size = round_up(int(2 * ffn["ffn_mult"] * config.hidden_size / 3))
                self.mlp = modeling_llama.LlamaMLP(own)

    def forward(self, x, **how):
        if self.has_attention:
            x = x + self.self_attn(self.input_layernorm(x), **how)[0]
        if self.has_mlp:
            x = x + self.mlp(self.post_attention_layernorm(x))
        return x


class Body(nn.Module):
    def __init__(self, config, blocks):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, block, i) for i, block in enumerate(blocks))
        self.norm = modeling_llama.LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = modeling_llama.LlamaRotaryEmbedding(config)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        length = ids.shape[1]
        positions = torch.arange(length)[None]
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        mask = torch.zeros(length, length, dtype=x.dtype).masked_fill(hidden, torch.finfo(x.dtype).min)[None, None]
        turned = self.rotary_emb(x, position_ids=positions)
        for layer in self.layers:
            x = layer(x, position_embeddings=turned, attention_mask=mask)
        return self.norm(x)


class DeciLMForCausalLM(nn.Module):
    """`keys`: config.json."""

    def __init__(self, keys):
        super().__init__()
        llama = {k: v for k, v in keys.items() if v is not None and k not in ("architectures", "model_type", "block_configs")}
        self.config = LlamaConfig(**llama, num_hidden_layers=len(keys["block_configs"]))
        self.config._attn_implementation = "eager"
        self.model = Body(self.config, keys["block_configs"])
        self.lm_head = nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False)

    def forward(self, input_ids, use_cache=False):
        assert not use_cache
        return types.SimpleNamespace(logits=self.lm_head(self.model(input_ids)))
