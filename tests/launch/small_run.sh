# small_run.sh: for the scripts beside it. write_run FOLDER REPOSITORY makes a folder with a recipe of 16 rows a step that goes on
# until someone ends it, on a model of 73 thousand parameters, and a link to the repository in whose name a shell would see more
# than a name.
write_run() {
  mkdir -p "$1/model"
  ln -s "$2" "$1/it's \$a repository"
  ln -s "$2/data/samples" "$1/samples"
  cat >"$1/model/config.json" <<'END'
{"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hybrid_override_pattern": "ME*-", "vocab_size": 2048,
 "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 24,
 "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 8, "chunk_size": 16, "n_routed_experts": 6,
 "num_experts_per_tok": 2, "moe_intermediate_size": 12, "moe_shared_expert_intermediate_size": 16, "n_shared_experts": 1,
 "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
END
  cat >"$1/recipe.yaml" <<'END'
step_scheduler: {global_batch_size: 16, local_batch_size: 1, max_steps: 1000000, num_epochs: 1000000, ckpt_every_steps: 5,
  save_checkpoint_every_epoch: false}
model: {_target_: from_config, config: {pretrained_model_name_or_path: model}, torch_dtype: f32}
tokenizer: {pretrained_model_name_or_path: samples/tokenizer}
dataset: {_target_: squad, dataset_name: samples/train.json, limit_dataset_samples: 48}
optimizer: {_target_: torch.optim.AdamW, lr: 0.001}
checkpoint: {checkpoint_dir: run}
END
}
