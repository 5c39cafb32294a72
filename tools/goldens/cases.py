"""The golden cases: what each model looks like and what it is there to catch."""

import dataclasses

INF = float("inf")

SMALL = dict(
    vocab_size=96,
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    intermediate_size=48,
    mamba_num_heads=4,
    mamba_head_dim=8,
    n_groups=2,
    ssm_state_size=16,
    conv_kernel=4,
    chunk_size=16,
    use_conv_bias=True,
    use_bias=False,
    mlp_bias=False,
    attention_bias=False,
    n_routed_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=24,
    moe_shared_expert_intermediate_size=40,
    n_shared_experts=1,
    n_group=1,
    topk_group=1,
    norm_topk_prob=True,
    routed_scaling_factor=1.0,
    layer_norm_epsilon=1e-5,
    time_step_limit=[0.0, INF],
    tie_word_embeddings=False,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One golden directory. `changes` are laid over SMALL; a value of None removes the key."""

    name: str
    pattern: str
    purpose: str
    changes: dict = dataclasses.field(default_factory=dict)
    spelling: str = "pattern"  # pattern | legacy_list | new_list | hf_saved
    prefix: str = "backbone"  # backbone | model
    stacked_experts: bool = False
    storage: str = "f32"  # f32 | bf16
    shards: int = 1
    batch: int = 2
    seq: int = 24
    gain: float = 1.5  # matrices have the standard deviation gain / sqrt(fan in)
    dt_bias_levels: tuple = (-4.0, -1.0, 0.5, -7.0)
    bias_mean: float = 0.0  # of e_score_correction_bias
    bias_spread: float = 0.1

    def config(self):
        """The config keys, without those that spell the layers."""
        keys = {**SMALL, **self.changes}
        return {k: v for k, v in keys.items() if v is not None}


CASES = [
    Case(
        "mamba_only",
        "MM",
        "Mamba-2 blocks alone; heads with time steps from 4e-5 to 4",
        dict(mamba_num_heads=8, n_groups=2),
    ),
    Case("attention_only", "**", "attention blocks alone, grouped queries"),
    Case("mlp_only", "--", "squared-ReLU MLP blocks alone"),
    Case(
        "moe_only",
        "EE",
        "mixture-of-experts blocks alone; 4 of 16 experts for a token, some experts without a token",
        dict(n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=12),
        bias_spread=0.2,
    ),
    Case(
        "all_four",
        "ME*-",
        "every block kind once; config.json exactly as Hugging Face saves it",
        spelling="hf_saved",
    ),
    Case(
        "wide_attention",
        "*-*",
        "heads x head_dim (80) differs from the hidden size (40); one key/value head",
        dict(hidden_size=40, num_attention_heads=5, num_key_value_heads=1, head_dim=16),
    ),
    Case(
        "odd_sizes",
        "M*-EM",
        "no size is a power of two: 3 Mamba heads of 12, 3 groups, state 10, 6 heads of 10 on 3, vocabulary 97",
        dict(
            vocab_size=97, hidden_size=30, num_attention_heads=6, num_key_value_heads=3, head_dim=10,
            intermediate_size=50, mamba_num_heads=3, mamba_head_dim=12, n_groups=3, ssm_state_size=10,
            conv_kernel=3, chunk_size=7, n_routed_experts=7, num_experts_per_tok=3, moe_intermediate_size=18,
            moe_shared_expert_intermediate_size=22,
        ),
        seq=29,
    ),
    Case(
        "many_chunks",
        "MM*M",
        "50 tokens in chunks of 8 (the last one ragged), slow decays that reach across chunks",
        dict(hidden_size=24, chunk_size=8, n_groups=1, head_dim=6),
        seq=50,
        dt_bias_levels=(-7.0, -4.0, -2.5, 0.0),
    ),
    Case(
        "extreme_decay",
        "M",
        "time steps of 20 to 27 (softplus threshold, decays that underflow to 0) beside steps down to 6e-6",
        dict(chunk_size=8),
        dt_bias_levels=(24.0, -9.0, 8.0, -2.0),
        seq=21,
    ),
    Case(
        "time_step_clamp",
        "MM",
        "a finite time_step_limit, [0.02, 0.5], active at both ends",
        dict(time_step_limit=[0.02, 0.5]),
    ),
    Case(
        "short_sequence",
        "M*E-",
        "two tokens: shorter than the convolution and the chunk; batch 3",
        batch=3,
        seq=2,
    ),
    Case(
        "moe_groups",
        "EE",
        "group-limited routing: 12 experts in 4 groups, 2 groups kept, k = 5; negative biases, so that a dropped "
        "expert must count as minus infinity and not as 0",
        dict(n_routed_experts=12, n_group=4, topk_group=2, num_experts_per_tok=5, moe_intermediate_size=12),
        bias_mean=-0.9,
        bias_spread=0.25,
        seq=20,
    ),
    Case(
        "moe_top1",
        "E*E",
        "k = 1 with norm_topk_prob true: the weight is routed_scaling_factor exactly, the gate gets no gradient",
        dict(num_experts_per_tok=1, routed_scaling_factor=1.5),
    ),
    Case(
        "moe_unnormalised",
        "EME",
        "norm_topk_prob false, routed_scaling_factor 2.5, strong correction biases of both signs; three indexed files",
        dict(norm_topk_prob=False, routed_scaling_factor=2.5, num_experts_per_tok=3),
        bias_spread=0.6,
        shards=3,
    ),
    Case(
        "moe_latent",
        "E-E",
        "experts of width 12 behind latent projections, shared expert at full width",
        dict(moe_latent_size=12, routed_scaling_factor=5.0),
    ),
    Case(
        "biases",
        "M-*E",
        "use_bias (Mamba projections) and mlp_bias (MLP, shared expert, latent projections; not the routed experts)",
        dict(use_bias=True, mlp_bias=True, moe_latent_size=20),
    ),
    Case(
        "no_conv_bias",
        "M-M",
        "use_conv_bias false: no conv1d.bias tensor; a large layer_norm_epsilon (0.05) that shows in every norm",
        dict(use_conv_bias=False, layer_norm_epsilon=0.05),
        seq=37,
    ),
    Case(
        "v5_names",
        "ME-*",
        "names as in memory: `model.` prefix, stacked experts; layer_types list; infinity as "
        "{\"__float__\": \"Infinity\"}",
        dict(time_step_limit=[0.0, {"__float__": "Infinity"}]),
        spelling="new_list",
        prefix="model",
        stacked_experts=True,
    ),
    Case(
        "legacy_names",
        "M*E-",
        "legacy layers_block_type list and the older key names (mamba_n_groups, mamba_d_conv, mamba_conv_bias, "
        "mamba_chunk_size); `model.` prefix with one tensor for each expert; no time_step_limit",
        dict(
            n_groups=None, mamba_n_groups=1, conv_kernel=None, mamba_d_conv=2, use_conv_bias=None,
            mamba_conv_bias=True, chunk_size=None, mamba_chunk_size=10, time_step_limit=None,
        ),
        spelling="legacy_list",
        prefix="model",
        seq=23,
    ),
    Case(
        "bf16_stored",
        "ME*-",
        "weights stored bf16 (correction bias f32) and computed in f32 or wider; two indexed files",
        storage="bf16",
        shards=2,
    ),
    Case(
        "heads_of_64",
        "M*E",
        "heads as large as those of real models, for kernels on tensor cores: 2 Mamba heads of 64 in 1 group, state 128, "
        "attention heads of 64",
        dict(
            vocab_size=64, mamba_num_heads=2, mamba_head_dim=64, n_groups=1, ssm_state_size=128, chunk_size=128,
            num_attention_heads=2, num_key_value_heads=1, head_dim=64,
        ),
        seq=141,
    ),
    Case(
        "heads_of_80_bf16",
        "M*-",
        "the same with 2 Mamba heads of 80 in 2 groups, state 256, attention heads of 128; weights stored bf16",
        dict(
            vocab_size=64, mamba_num_heads=2, mamba_head_dim=80, n_groups=2, ssm_state_size=256, chunk_size=128,
            num_attention_heads=2, num_key_value_heads=2, head_dim=128,
        ),
        seq=77,
        storage="bf16",
    ),
    Case(
        "pruned",
        "MEM*-E*-",
        "`per_layer_config`: of Mamba, attention and MLP one block with the sizes of the whole config and one with its own, and "
        "two MoE blocks, each with its own, which transformers builds from those configs (`oracle.py`); config.json as Hugging "
        "Face saves it",
        dict(
            per_layer_config={
                1: dict(n_routed_experts=12, num_experts_per_tok=3, moe_intermediate_size=16),
                2: dict(
                    mamba_num_heads=8, mamba_head_dim=4, n_groups=4, ssm_state_size=12, conv_kernel=3, chunk_size=7
                ),
                5: dict(
                    moe_shared_expert_intermediate_size=24, moe_latent_size=20, n_group=2, norm_topk_prob=False,
                    routed_scaling_factor=0.75,
                ),
                6: dict(num_attention_heads=2, head_dim=6),
                7: dict(intermediate_size=20, mlp_bias=True),
            },
        ),
        spelling="hf_saved",
    ),
]
