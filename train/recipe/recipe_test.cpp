#include "train/recipe/test_recipes.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <cmath>

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("absent keys have the defaults of AutoModel's recipes") {
  const Recipe r = parse("dataset: {_target_: squad}\noptimizer: {}\nlr_scheduler: {}\n");
  CHECK(r.seed == 42);
  CHECK(r.deterministic);
  CHECK(r.step_scheduler.global_batch_size == 32);
  CHECK(r.step_scheduler.local_batch_size == 1);
  CHECK(r.step_scheduler.num_epochs == 10);
  CHECK_FALSE(r.step_scheduler.max_steps);
  CHECK(r.step_scheduler.ckpt_every_steps == 100);
  CHECK_FALSE(r.step_scheduler.val_every_steps);
  CHECK(r.step_scheduler.preemption_signals == std::vector<int>{SIGTERM});
  CHECK(r.checkpoint.enabled);
  CHECK(r.checkpoint.checkpoint_dir == "checkpoints/");
  CHECK(r.loss.kind == LossKind::masked);
  CHECK(r.optimizer->lr == 1e-4);
  CHECK(r.optimizer->betas == std::array<double, 2>{0.9, 0.999});
  CHECK(r.optimizer->eps == 1e-8);
  CHECK(r.optimizer->weight_decay == 0.01);
  CHECK(r.lr_scheduler->lr_decay_style == DecayStyle::cosine);
  CHECK(r.clip_grad_norm.max_norm == 1);
  CHECK(r.dataloader.shuffle);
  CHECK_FALSE(r.validation_dataloader.shuffle);
  CHECK(r.dataset->dataset_name == "squad");
  CHECK(r.dataset->truncation_side == Truncation::left);
  CHECK(r.dataset->append_eos);
  CHECK(r.packed_sequence.packed_sequence_size == 0);
  CHECK_FALSE(parse("dataset: {_target_: mock}\n").lr_scheduler);
}

TEST_CASE("an explicit null is not an absent key") {
  CHECK_FALSE(parse(with("", "num_epochs: null")).step_scheduler.num_epochs);
  CHECK_FALSE(parse(with("", "num_epochs: none")).step_scheduler.num_epochs);
  CHECK_FALSE(parse(with("", "ckpt_every_steps: null")).step_scheduler.ckpt_every_steps);
  CHECK(parse(with("", "preemption_signal: null")).step_scheduler.preemption_signals.empty());
  CHECK(parse(with("", "preemption_signal: [SIGUSR1, 15]")).step_scheduler.preemption_signals ==
        std::vector<int>{SIGUSR1, 15});
  CHECK(parse(with("clip_grad_norm: {max_norm: null}")).clip_grad_norm.max_norm == 1);
  CHECK(parse(with("clip_grad_norm:")).clip_grad_norm.max_norm == 1);
  CHECK(std::isinf(parse(with("clip_grad_norm: {max_norm: 0}")).clip_grad_norm.max_norm));
  CHECK(std::isinf(parse(with("clip_grad_norm: {max_norm: .inf}")).clip_grad_norm.max_norm));
  CHECK_FALSE(parse(with("lr_scheduler: null")).lr_scheduler);
  CHECK(error_with("optimizer: {lr: null}") ==
        "r.yaml:2: optimizer.lr: want a number from 0 to 100, found null");
}

TEST_CASE("numbers in any spelling") {
  for (const char* eps : {"1e-8", "'1e-8'", "1.0e-8", "0.00000001"})
    CHECK(parse(cat("dataset: {_target_: mock}\noptimizer: {eps: ", eps, "}")).optimizer->eps == 1e-8);
  CHECK(parse(with("", "max_steps: 1_000")).step_scheduler.max_steps == 1000);
  CHECK(parse(with("", "max_steps: '50'")).step_scheduler.max_steps == 50);
  CHECK(parse("dataset: {_target_: mock}\noptimizer: {betas: '(0.9, 0.95)'}").optimizer->betas[1] == 0.95);
}

TEST_CASE("classes are known by their last name, wherever they live") {
  const auto kind = [](const std::string& name) {
    return parse(cat("dataset: {_target_: mock}\noptimizer: {_target_: ", name, "}")).optimizer->kind;
  };
  CHECK(kind("torch.optim.AdamW") == OptimizerKind::adamw);
  CHECK(kind("torch.optim.Adam") == OptimizerKind::adam);
  CHECK(kind("torch.optim.SGD") == OptimizerKind::sgd);
  CHECK(kind("Adam") == OptimizerKind::adam);
  CHECK(kind("some.package.optimizers.FusedAdam") == OptimizerKind::adamw);
  CHECK(kind("some.package.optimizers.FusedAdam, adam_w_mode: false") == OptimizerKind::adam);
  const auto dataset = [](const std::string& name) {
    return parse(cat("dataset: {_target_: ", name, "}")).dataset->kind;
  };
  CHECK(dataset("x.squad.make_squad_dataset") == DatasetKind::squad);
  CHECK(dataset("x.chat_dataset.ChatDataset") == DatasetKind::messages);
  CHECK(dataset("x.ColumnMappedTextInstructionDataset, column_mapping: {question: q, answer: a}") ==
        DatasetKind::column_mapped);
  CHECK(dataset("x.hellaswag.HellaSwag") == DatasetKind::hellaswag);
  CHECK(dataset("x.MegatronPretraining") == DatasetKind::megatron);
  CHECK(dataset("x.MockIterableDataset") == DatasetKind::mock);
  CHECK(dataset("tokens") == DatasetKind::tokens);
  const auto loss = [](const std::string& name) {
    return parse(cat("dataset: {_target_: mock}\nloss_fn: {_target_: ", name, "}")).loss.kind;
  };
  CHECK(loss("a.b.MaskedCrossEntropy") == LossKind::masked);
  CHECK(loss("a.b.ChunkedCrossEntropy, chunk_len: 8") == LossKind::chunked);
  CHECK(loss("a.b.FusedLinearCrossEntropy") == LossKind::fused_linear);
  CHECK(loss("a.b.TEParallelCrossEntropy") == LossKind::masked);
  CHECK(
      error_with("optimizer: {_target_: torch.optim.Adagrad}") ==
      "r.yaml:2: optimizer._target_: no class 'Adagrad' in this build (found 'torch.optim.Adagrad'); known: "
      "AdamW, Adam, SGD, FusedAdam");
  CHECK(contains(error_with("rng: {_target_: x.OtherRng}"), "known: StatefulRNG"));
  CHECK(contains(error_of("dataset: {split: train}"), "dataset._target_: is missing"));
  CHECK(contains(error_of("dataset: {_targt_: mock}"), "unknown key '_targt_'"));
}

TEST_CASE("SGD has its own defaults and keys") {
  const Recipe r =
      parse("dataset: {_target_: mock}\noptimizer: {_target_: torch.optim.SGD, lr: 5.0e-5, momentum: 0.9}");
  CHECK(r.optimizer->weight_decay == 0);
  CHECK(r.optimizer->momentum == 0.9);
  CHECK(error_with("optimizer: {_target_: SGD, betas: [0.9, 0.99]}") ==
        "r.yaml:2: optimizer.betas: key 'betas' belongs to AdamW, Adam; optimizer._target_ is SGD");
  CHECK(error_with("optimizer: {momentum: 0.9}") ==
        "r.yaml:2: optimizer.momentum: key 'momentum' belongs to SGD; optimizer._target_ is AdamW, which is "
        "the "
        "default");
  CHECK(contains(error_with("optimizer: {_target_: SGD, nesterov: true}"), "needs a momentum above 0"));
  CHECK(contains(error_with("optimizer: {_target_: SGD, momentum: 1}"),
                 "want a number from 0 to below 1, found '1'"));
}

TEST_CASE("a wrong value names file, line, key, wish and fact") {
  CHECK(error_with("step_scheduler:\n  max_steps: abc") ==
        "r.yaml:3: step_scheduler.max_steps: want a positive integer, found 'abc'");
  CHECK(error_with("step_scheduler: {max_steps: 0}") ==
        "r.yaml:2: step_scheduler.max_steps: want a positive integer, found '0'");
  CHECK(error_with("step_scheduler: {max_steps: 2.5}") ==
        "r.yaml:2: step_scheduler.max_steps: want a positive integer, found '2.5'");
  CHECK(error_with("lr_scheduler: {lr_warmup_steps: 0.1}") ==
        "r.yaml:2: lr_scheduler.lr_warmup_steps: want a nonnegative integer, found '0.1'");
  CHECK(error_with("checkpoint: {enabled: 1}") ==
        "r.yaml:2: checkpoint.enabled: want true or false, found '1'");
  CHECK(error_with("checkpoint: {checkpoint_dir: [a]}") ==
        "r.yaml:2: checkpoint.checkpoint_dir: want text, found a list");
  CHECK(contains(error_with("checkpoint: {checkpoint_dir: true}"), "want text (in quotes"));
  CHECK(parse(with("checkpoint: {checkpoint_dir: '123'}")).checkpoint.checkpoint_dir == "123");
  CHECK(
      error_with("optimizer: {betas: [0.9]}") ==
      "r.yaml:2: optimizer.betas: want a list of two numbers, each a number from 0 to below 1, found a list");
  CHECK(contains(error_with("optimizer: {betas: [0.9, 1]}"),
                 "optimizer.betas.1: want a number from 0 to below 1"));
  CHECK(error_with("optimizer: 5") == "r.yaml:2: optimizer: want a section of keys, found '5'");
  CHECK(error_with("optimizer: [1]") == "r.yaml:2: optimizer: want a section of keys, found a list");
  CHECK(contains(error_with("optimizer: {lr: .inf}"), "want a number from 0 to 100"));
  CHECK(contains(error_with("optimizer: {lr: -1e-3}"), "want a number from 0 to 100, found '-1e-3'"));
  CHECK(error_with("lr_scheduler: {lr_decay_style: cosin}") ==
        "r.yaml:2: lr_scheduler.lr_decay_style: want one of constant, linear, cosine, inverse-square-root, "
        "WSD, "
        "found 'cosin'");
  CHECK(contains(error_with("model: {torch_dtype: f16}"), "model.torch_dtype: want auto, bf16, f32 or f64"));
  CHECK(contains(error_with("model: {torch_dtype: torch.float16}"), "found 'torch.float16'"));
  CHECK(contains(error_with("model: {torch_dtype: fp16}"),
                 "(bf16 is as small; the numbers of f16 end at 65504"));
  CHECK_FALSE(contains(error_with("model: {torch_dtype: f32x}"), "65504"));
  CHECK(contains(error_with("model: {torch_dtype: i64}"), "model.torch_dtype: want auto, bf16, f32 or f64"));
  CHECK(
      contains(error_with("step_scheduler: {preemption_signal: SIGKIL}"), "want signals by number or name"));
  CHECK(contains(error_with("dist_env: {runtime_env: [a]}"), "dist_env.runtime_env: want a section"));
  CHECK(contains(error_of("dataset: {_target_: squad, padding: max_length}"), "max_length needs seq_length"));
  CHECK(contains(error_of("[a, b]"), "want a recipe (sections of keys)"));
  CHECK(contains(error_with("lr_scheduler: {use_checkpoint_opt_param_scheduler: true, "
                            "override_opt_param_scheduler: true}"),
                 "want one of them"));
}

TEST_CASE("an unknown key suggests the nearest one") {
  CHECK(error_with("step_scheduler: {max_step: 5}") ==
        "r.yaml:2: step_scheduler.max_step: unknown key 'max_step'; the nearest known key is 'max_steps'");
  CHECK(contains(error_with("optimiser: {lr: 1}"), "nearest known key is 'optimizer'"));
  CHECK(contains(error_with("optimizer: {learning_rate: 1}"),
                 "optimizer.learning_rate: unknown key 'learning_rate'; the nearest known key is 'lr'"));
  CHECK(contains(error_with("learning_rate: 1"), "the nearest known key is 'optimizer.lr'"));
  CHECK(
      contains(error_with("step_scheduler: {num_train_epochs: 1}"), "the nearest known key is 'num_epochs'"));
  CHECK(contains(error_with("max_steps: 5"), "nearest known key is 'step_scheduler.max_steps'"));
  CHECK(contains(
      error_with("optimizer: {param_group_overrides: [{patern: a}]}"),
      "optimizer.param_group_overrides.0.patern: unknown key 'patern'; the nearest known key is 'pattern'"));
  CHECK(contains(error_with("model: {moe: {aux_los: 1}}"), "aux_loss_coeff"));
  CHECK(contains(error_with("optimizer: {param_group_overrides: [{pattern: a, wandb: 1}]}"),
                 "param_group_overrides.0.wandb: unknown key 'wandb'"));
  CHECK(contains(error_with("clip_grad_norm: {zebra: 1}"), "unknown key 'zebra'; known here: max_norm"));
  CHECK(contains(error_of("dataset: {_target_: mock, split: train}"),
                 "key 'split' belongs to squad, messages, column_mapped, hellaswag, megatron; "
                 "dataset._target_ is mock"));
  CHECK(contains(error_of("lr_schedular: {}\nstep_scheduler: {max_steps: 1}", {}, RecipeUse::schedule),
                 "lr_scheduler"));
}

TEST_CASE("all problems of a recipe are in one message, a line for each") {
  CHECK(
      error_of("dataset: {_target_: mock}\n"
               "optimizer: {lr: abc, epz: 1}\n"
               "step_scheduler:\n  max_step: 5\n  local_batch_size: 0\n"
               "checkpoint: {checkpoint_dir: $NEMOCUBE_TEST_UNSET}\n"
               "wandb: {project: x}\nlr_schedular: {}\n"
               "validation_dataset_a: {_target_: x.Unknown, path: p}\n",
               {"distributed.tp_size=x", "noequals"}, RecipeUse::train) ==
      "r.yaml: 10 problems:\n"
      "  r.yaml:2: optimizer.lr: want a number from 0 to 100, found 'abc'\n"
      "  r.yaml:2: optimizer.epz: unknown key 'epz'; the nearest known key is 'eps'\n"
      "  r.yaml:4: step_scheduler.max_step: unknown key 'max_step'; the nearest known key is 'max_steps'\n"
      "  r.yaml:5: step_scheduler.local_batch_size: want an integer from 1 to 2147483647, found '0'\n"
      "  r.yaml:6: checkpoint.checkpoint_dir: environment variable 'NEMOCUBE_TEST_UNSET' is not set "
      "(wanted by "
      "$NEMOCUBE_TEST_UNSET)\n"
      "  r.yaml:8: lr_schedular: unknown key 'lr_schedular'; the nearest known key is 'lr_scheduler'\n"
      "  r.yaml:9: validation_dataset_a._target_: no class 'Unknown' in this build (found 'x.Unknown'); "
      "known: "
      "squad, make_squad_dataset, messages, ChatDataset, column_mapped, ColumnMappedTextInstructionDataset, "
      "hellaswag, HellaSwag, megatron, MegatronPretraining, mock, MockIterableDataset, "
      "mock_iterable_dataset, "
      "tokens\n"
      "  --set noequals: want key.path=value\n"
      "  --set distributed.tp_size: want an integer from 1 to 1048576, found 'x'\n"
      "  r.yaml: the section 'model' is missing");
}

TEST_CASE("rates that overflow or divide by zero are refused with their range") {
  const std::vector<std::pair<const char*, const char*>> cases{
      {"optimizer.eps=0", "optimizer.eps: want a number from 1e-30 to 1, found '0'"},
      {"optimizer.eps=1e-300", "want a number from 1e-30 to 1"},
      {"optimizer.eps=1e300", "want a number from 1e-30 to 1"},
      {"optimizer.lr=1e300", "optimizer.lr: want a number from 0 to 100, found '1e300'"},
      {"optimizer.weight_decay=1e300", "optimizer.weight_decay: want a number from 0 to 100"},
      {"lr_scheduler.init_lr=1e300", "want a number from 0 to 100"},
      {"lr_scheduler.max_lr=101", "want a number from 0 to 100"},
      {"lr_scheduler.min_lr=-1", "want a number from 0 to 100"},
      {"lr_scheduler.start_wd=1e300", "want a number from 0 to 100"},
      {"lr_scheduler.end_wd=1e300", "want a number from 0 to 100"},
      {"optimizer.param_group_overrides=[{pattern: a, lr_mult: 1e300}]",
       "lr_mult: want a number from 0 to 10000"},
      {"optimizer.param_group_overrides=[{pattern: a, wd_mult: 1e300}]",
       "wd_mult: want a number from 0 to 10000"},
      {"model.moe.expert_bias_update_rate=1e300", "want a number from 0 to 1, found"},
      {"model.moe.aux_loss_coeff=1e300", "want a number from 0 to 100"},
      {"model.moe.seq_aux_loss_coeff=1e300", "want a number from 0 to 100"},
      {"model.moe.global_aux_loss_coeff=1e300", "want a number from 0 to 100"},
      {"model.moe.z_loss_coeff=1e300", "want a number from 0 to 100"}};
  for (const auto& [override, part] : cases) {
    const std::string message = error_of(with(""), {override});
    CHECK_MESSAGE(contains(message, part), override, ": ", message);
  }
  CHECK(parse(with(""), {"optimizer.eps=1e-15", "optimizer.lr=0"}).optimizer->eps == 1e-15);
}

TEST_CASE("AutoModel's -1 for off is accepted for numbers without effect, and no other negative number") {
  CHECK_NOTHROW(parse(with("benchmark: {nsys_start: -1, nsys_end: -1}")));
  CHECK(contains(error_with("benchmark: {nsys_start: -2}"), "nsys_start"));
}

TEST_CASE("sections of what is not in this build are accepted when they are off") {
  CHECK_NOTHROW(parse(with("fp8: {enabled: false, recipe_name: tensorwise}\nqat: {enabled: no}")));
  CHECK(contains(error_with("fp8: {enabled: true, recipe_name: tensorwise}"),
                 "FP8 training is not in this build"));
  CHECK(contains(error_with("fp8: {recipe_name: tensorwise}"), "FP8 training is not in this build"));
}

TEST_CASE("unknown keys: a list of known ones is printed once, a key of another class is not suggested") {
  const std::string twice = error_with("clip_grad_norm: {zebra: 1, yak: 2}");
  CHECK(contains(twice, "unknown key 'zebra'; known here: max_norm"));
  CHECK(contains(twice, "unknown key 'yak'; known here: the keys listed for clip_grad_norm.zebra"));
  // `path_or_dataset` belongs to another class than the one to be named.
  const std::string other =
      error_with("validation_dataset: {_target_: x.GLUE_MRPC, path_or_data: y, sed: 1}");
  CHECK(contains(other,
                 "unknown key 'path_or_data'; the keys of this section depend on "
                 "validation_dataset._target_"));
  CHECK_FALSE(contains(other, "path_or_dataset"));
  CHECK(contains(error_with("validation_dataset: {_target_: messages, path_or_dataset: y}"),
                 "key 'path_or_dataset' belongs to hellaswag"));
  // A second spelling of a key that is given would contradict it.
  CHECK(contains(error_with("validation_dataset: {_target_: messages, path_or_dataset_i: y}"),
                 "nearest known key is 'path_or_dataset_id'"));
  CHECK_FALSE(contains(error_with("validation_dataset: {_target_: messages, path: x, path_or_dataset_i: y}"),
                       "nearest known key is 'path_or_dataset_id'"));
}

TEST_CASE("null on the command line takes a key out of the recipe") {
  const std::string yaml = with("checkpoint: {checkpoint_dir: x}\nmfu: {peak_tflops: 3}\nseed: 3\n");
  CHECK(parse(yaml, {"optimizer.lr=null"}).optimizer->lr == 1e-4);
  CHECK(parse(yaml, {"checkpoint.checkpoint_dir=null"}).checkpoint.checkpoint_dir == "checkpoints/");
  CHECK_FALSE(parse(yaml, {"mfu.peak_tflops=null"}).mfu.peak_tflops);
  CHECK(parse(yaml, {"seed=none"}).seed == 42);
  CHECK_FALSE(parse(yaml, {"step_scheduler.num_epochs=null"}).step_scheduler.num_epochs);
  CHECK(
      contains(error_of(yaml, {"dataset._target_=null"}), "dataset._target_: is missing: want one of squad"));
  CHECK(contains(error_of(yaml, {"optimizer.lrr=null"}), "the nearest known key is 'lr'"));
}

TEST_CASE("a class changed on the command line leaves the keys of the other class without effect") {
  const std::string squad = "dataset: {_target_: squad, path: a, split: train, seq_length: 8, fp8: true}\n";
  const Recipe mock = parse(squad, {"dataset._target_=mock"});
  CHECK(mock.dataset->kind == DatasetKind::mock);
  CHECK(mock.dataset->seq_length == 8);
  CHECK(mock.dataset->path.names.empty());
  CHECK(mock.no_effect == std::vector<std::string>{"dataset.path", "dataset.split", "dataset.fp8"});
  CHECK(contains(error_of(squad, {"dataset._target_=mock", "dataset.padding=longest"}),
                 "--set dataset.padding: key 'padding' belongs to squad, messages, column_mapped; "
                 "dataset._target_ is mock"));
  CHECK(parse("dataset: {_target_: mock, vocab_size: 3}", {"dataset.split=null"}).dataset->vocab_size == 3);
  CHECK(parse("dataset: {_target_: mock}\noptimizer: {_target_: AdamW, betas: [0.9, 0.9]}",
              {"optimizer._target_=SGD"})
            .no_effect == std::vector<std::string>{"optimizer.betas"});
}

TEST_CASE("overrides come from the command line and say so") {
  const Recipe r = parse(with(""), {"step_scheduler.max_steps=7", "lr_scheduler.lr_decay_style=linear",
                                    "optimizer.betas=[0.8, 0.9]", "kernels.ssd_scan=recurrent"});
  CHECK(r.step_scheduler.max_steps == 7);
  CHECK(r.lr_scheduler->lr_decay_style == DecayStyle::linear);
  CHECK(r.optimizer->betas[0] == 0.8);
  CHECK(r.kernels.by_op.at("ssd_scan") == "recurrent");
  CHECK(error_of(with(""), {"step_scheduler.max_steps=x"}) ==
        "--set step_scheduler.max_steps: want a positive integer, found 'x'");
  CHECK(contains(error_of(with(""), {"optimizer.lrr=1"}), "--set optimizer.lrr: unknown key 'lrr'"));
  CHECK(parse(with(""), {"optimizer.param_group_overrides.0.pattern=norm",
                         "optimizer.param_group_overrides=[{pattern: a, wd_mult: 0}]"})
            .optimizer->param_group_overrides[0]
            .wd_mult == 0);
}

TEST_CASE("variables of the environment") {
  ::setenv("NEMOCUBE_TEST_DIR", "runs/7", 1);
  ::setenv("NEMOCUBE_TEST_STEPS", "12", 1);
  CHECK(parse(with("checkpoint: {checkpoint_dir: '${NEMOCUBE_TEST_DIR}/a'}")).checkpoint.checkpoint_dir ==
        "runs/7/a");
  CHECK(parse(with("", "max_steps: '${NEMOCUBE_TEST_STEPS}'")).step_scheduler.max_steps == 12);
  CHECK(
      contains(error_with("checkpoint: {checkpoint_dir: $NEMOCUBE_TEST_UNSET}"),
               "r.yaml:2: checkpoint.checkpoint_dir: environment variable 'NEMOCUBE_TEST_UNSET' is not set"));
  CHECK(error_with("wandb: {key: $NEMOCUBE_TEST_UNSET}") == "no error");
}

TEST_CASE("forms of AutoModel's keys: a collater as a section, sizes that are null, a launcher's section") {
  const auto collater = [](const std::string& keys) {
    return error_with(cat("dataloader: {collate_fn: {", keys, "}}"));
  };
  const std::string target = "_target_: nemo_automodel.components.datasets.utils.default_collater";
  CHECK(collater(target) == "no error");
  CHECK(collater(target + ", pad_seq_len_divisible: 160") == "no error");
  CHECK(collater(target + ", pad_seq_len_divisible: null") == "no error");
  CHECK(contains(collater(target + ", pad_seq_len_divisible: 0"),
                 "dataloader.collate_fn.pad_seq_len_divisible: want a"));
  CHECK(contains(collater(target + ", pad: 3"),
                 "dataloader.collate_fn.pad: unknown key; want _target_ or pad_seq_len_divisible"));
  CHECK(contains(collater("pad_seq_len_divisible: 8"), "dataloader.collate_fn: want _target_, one of"));
  CHECK(contains(collater("_target_: x.other"), "dataloader.collate_fn._target_: "));
  for (const char* size : {"tp_size", "pp_size", "cp_size", "ep_size"})
    CHECK(error_with(cat("distributed: {", size, ": null}")) == "no error");
  CHECK(error_with("skypilot: {cloud: x, num_nodes: 2}") == "no error");
  CHECK(error_with("tokenizer: {pretrained_model_name_or_path: x, add_bos_token: false}") == "no error");
  CHECK(contains(error_with("tokenizer: {pretrained_model_name_or_path: x, add_bos_token: true}"),
                 "tokenizer.add_bos_token: a first or last token that a recipe adds to every text is not in "
                 "this build; want false"));
}

TEST_CASE("one value with two spellings") {
  CHECK(parse(with("seed: 7")).seed == 7);
  CHECK(parse(with("rng: {_target_: x.StatefulRNG, seed: 1111, ranked: true}")).seed == 1111);
  CHECK(parse(with("seed: 5\nrng: {seed: 5}")).seed == 5);
  CHECK(error_with("seed: 42\nrng: {seed: 1111}") ==
        "r.yaml:3: rng.seed: is 1111, but seed is 42; want one of them, or equal values");
  CHECK(parse(with("benchmark: {peak_tflops: 9}")).mfu.peak_tflops == 9);
  CHECK(parse(with("benchmark: {peak_tflops: 9}\nmfu: {peak_tflops: 9}")).mfu.peak_tflops == 9);
  CHECK(error_with("benchmark: {peak_tflops: 9}\nmfu: {peak_tflops: 5}") ==
        "r.yaml:2: benchmark.peak_tflops: is 9.0, but mfu.peak_tflops is 5.0; want one of them, or equal "
        "values");
  CHECK(parse("dataset: {_target_: mock, seq_len: 8}").dataset->seq_length == 8);
  CHECK(contains(error_of("validation_dataset_x: {_target_: mock, seq_len: 8, seq_length: 9}"),
                 "validation_dataset_x.seq_len: is 8, but validation_dataset_x.seq_length is 9"));
}

TEST_CASE("what means nothing on one rank is accepted and listed") {
  const Recipe r = parse(
      with("recipe: X\ncompile: {enabled: false}\nwandb: {a: {b: c}}\nci: {time: '1'}\n"
           "dist_env: {backend: nccl, timeout_minutes: 1, runtime_env: {A: b}}\n"
           "distributed: {strategy: fsdp2, tp_size: 1, dp_size: none, moe: {ignore_router_for_ac: true}}\n"));
  CHECK(r.no_effect == std::vector<std::string>{"distributed.moe.ignore_router_for_ac", "compile.enabled",
                                                "wandb", "ci", "recipe"});
  CHECK(r.warnings.empty());
  CHECK(parse(with("deterministic: false")).no_effect == std::vector<std::string>{"deterministic"});
  CHECK(parse(with("checkpoint: {save_consolidated: every}\nbenchmark: {warmup_steps: 2}\n"
                   "mfu: {device: h100, peak_tflops: 1}\nvalidation_dataloader: {shuffle: true, drop_last: "
                   "true, batch_size: 2}\n"))
            .no_effect == std::vector<std::string>{"checkpoint.save_consolidated", "mfu.device",
                                                   "benchmark.warmup_steps", "validation_dataloader.shuffle",
                                                   "validation_dataloader.drop_last"});
  CHECK(parse(with("validation_dataloader: {shuffle: false, drop_last: false}")).no_effect.empty());
  CHECK(error_with("loss_fn: {ignore_index: -100}") == "no error");
  CHECK(contains(error_with("loss_fn: {ignore_index: 0}"),
                 "loss_fn.ignore_index: another label that is ignored is not in this build; want -100"));
  CHECK(error_with("fp8: {}") == "no error");
  CHECK(contains(error_with("mtp: {ignore_index: 0}"), "another label that is ignored is not in this build"));
  CHECK(error_with("mtp: {scaling_factor: null, ignore_index: -100}") == "no error");
  CHECK(contains(error_with("loss_fn: {reduction: mean}"), "want sum, found 'mean'"));
  CHECK(error_with("optimizer: {amsgrad: False}") == "no error");
  CHECK(contains(error_with("optimizer: {amsgrad: True}"), "AMSGrad is not in this build"));
}

TEST_CASE("the class of the recipe: those that train something else are refused") {
  for (const auto& [name, what] :
       {std::pair{"FinetuneRecipeForVLM", "trains models of texts and images"},
        {"nemo_automodel.recipes.llm.kd.KnowledgeDistillationRecipeForNextTokenPrediction",
         "trains a model on the outputs of another one"},
        {"TrainFinetuneRecipeForSequenceClassification", "trains classifiers"},
        {"TrainBiEncoderRecipe", "trains models for retrieval"},
        {"TrainEagle3Recipe", "trains drafts for speculative decoding"},
        {"DiffusionGemmaSFTRecipe", "trains DiffusionGemma"}})
    CHECK(contains(error_with(cat("recipe: ", name)),
                   cat("recipe: is ", name, ", which ", what,
                       "; want TrainFinetuneRecipeForNextTokenPrediction, DiffusionLMSFTRecipe or "
                       "BenchmarkingRecipeForNextTokenPrediction")));
}

TEST_CASE("the class of the recipe: a benchmark is one, whatever the spelling; others change nothing") {
  const auto plan = [](const std::string& more) {
    return parse_recipe(cat("step_scheduler: {max_steps: 5}\nmodel: {config: ", model_folder,
                            "}\ndataset: {_target_: mock, seq_len: 8}\noptimizer: {lr: 1e-3}\n", more),
                        "r.yaml", {}, RecipeUse::plan);
  };
  const std::string sections =
      "lr_scheduler: {}\nclip_grad_norm: {max_norm: 2}\nbenchmark: {warmup_steps: 2}\n";
  for (const char* text : {"BenchmarkingRecipeForNextTokenPrediction",
                           "nemo_automodel.recipes.llm.benchmark.BenchmarkingRecipeForNextTokenPrediction",
                           "{_target_: a.BenchmarkingRecipeForNextTokenPrediction}"}) {
    const Recipe r = plan(cat(sections, "recipe: ", text));
    CHECK(is_benchmark(r));
    CHECK(r.benchmark.warmup_steps == 2);
    CHECK_FALSE(r.lr_scheduler.has_value());
    CHECK(std::isinf(r.clip_grad_norm.max_norm));
    CHECK_FALSE(r.checkpoint.enabled);
    CHECK(r.dataset->num_samples == 5 * 32);
    CHECK(r.dataset->vocab_size == 96);  // of the model
    CHECK(r.no_effect == std::vector<std::string>{"lr_scheduler", "clip_grad_norm"});
    CHECK(describe(parse_recipe(describe(r), "r.yaml", {}, RecipeUse::plan)) == describe(r));
    CHECK(parse_recipe(describe(r), "r.yaml", {}, RecipeUse::plan).no_effect.empty());
  }
  const Recipe r = plan(cat(sections, "recipe: TrainFinetuneRecipeForNextTokenPrediction"));
  CHECK_FALSE(is_benchmark(r));
  CHECK(r.clip_grad_norm.max_norm == 2);
  CHECK(r.dataset->vocab_size == 1024);
  CHECK(r.no_effect == std::vector<std::string>{"benchmark.warmup_steps", "recipe"});
  CHECK_FALSE(is_benchmark(plan("recipe: null")));
  CHECK_FALSE(is_benchmark(plan("recipe: NotBenchmarkingRecipeForNextTokenPrediction")));
  CHECK(
      contains(error_with("recipe: [a]"), "recipe: want a class, or a section with _target_, found a list"));
}

TEST_CASE("event files are written where the recipe has the section") {
  CHECK_FALSE(parse(with("")).tensorboard.has_value());
  CHECK_FALSE(parse(with("tensorboard: null")).tensorboard.has_value());
  REQUIRE(parse(with("tensorboard: {}")).tensorboard.has_value());
  CHECK(parse(with("tensorboard: {}")).tensorboard->enabled);
  const Recipe r =
      parse(with("tensorboard: {tensorboard_log_interval: 5, tensorboard_queue_size: 1000, "
                 "log_loss_scale_to_tensorboard: "
                 "true, log_params_norm: false}"));
  CHECK(r.tensorboard->tensorboard_log_interval == 5);
  CHECK(r.no_effect == std::vector<std::string>{"tensorboard.tensorboard_queue_size",
                                                "tensorboard.log_loss_scale_to_tensorboard"});
  CHECK(error_with("tensorboard: {tensorboard_log_interval: 0}") ==
        "r.yaml:2: tensorboard.tensorboard_log_interval: want a positive integer, found '0'");
  CHECK(contains(error_with("tensorboard: {log_params_norm: true}"),
                 "tensorboard.log_params_norm: the norm of all parameters is not in this build"));
  CHECK(contains(error_with("tensorboard: {log_intervall: 1}"), "the nearest known key is 'log_interval'"));
}

TEST_CASE("what means nothing on one rank is read all the same") {
  const std::vector<std::pair<const char*, const char*>> cases{
      {"compile.foo=1", "compile.foo: unknown key 'foo'"},
      {"compile.enabled=maybe", "compile.enabled: want true or false"},
      {"model.backend.atn=te", "unknown key 'atn'; the nearest known key is 'attn'"},
      {"model.backend.fake_gate_noise=0.5", "noise in the balanced gate is not in this build"},
      {"distributed.pipeline.pp_shedule=1f1b", "the nearest known key is 'pp_schedule'"},
      {"distributed.moe.foo=1", "distributed.moe.foo: unknown key"},
      {"distributed.strategy=foo",
       "distributed.strategy: want one of fsdp2, megatron_fsdp, ddp, found 'foo'"},
      {"dist_env.backend=foo", "dist_env.backend: want one of nccl, gloo, mpi"},
      {"step_scheduler.gc_every_steps=abc", "want a nonnegative integer, found 'abc'"},
      {"dataloader.num_workers=-3", "want a nonnegative integer, found '-3'"},
      {"checkpoint.is_async=maybe", "want true or false, found 'maybe'"},
      {"checkpoint.save_consolidated=foo", "want one of final, every, true, false, found 'foo'"},
      {"loss_fn.fp32_upcast=foo", "want true or false, found 'foo'"}};
  for (const auto& [override, part] : cases) {
    const std::string message = error_of(with(""), {override});
    CHECK_MESSAGE(contains(message, part), override, ": ", message);
  }
  CHECK(error_of(with(""), {"compile=none", "distributed={pipeline: null, moe: {}}"}) == "no error");
  CHECK(error_of(with(""), {"dist_env.backend=cpu:gloo,cuda:nccl", "model.backend.fake_balanced_gate=false",
                            "model.backend.fake_gate_noise=0.0", "model.backend.te_fp8=null",
                            "model.backend.compile_attn=false",
                            "model.backend.dispatcher_async_dispatch=true"}) == "no error");
}

TEST_CASE("the strategy has a key of its own and AutoModel's classes") {
  const auto strategy = [](const std::string& keys, const std::vector<std::string>& overrides = {}) {
    return parse(with(cat("distributed: {", keys, "}")), overrides).distributed.strategy;
  };
  CHECK(strategy("") == Strategy::fsdp2);
  CHECK(strategy("strategy: null") == Strategy::fsdp2);
  CHECK(strategy("strategy: ddp") == Strategy::ddp);
  CHECK(strategy("_target_: a.b.fsdp2.FSDP2Manager") == Strategy::fsdp2);
  CHECK(strategy("_target_: a.b.megatron_fsdp.MegatronFSDPManager, zero_dp_strategy: 2") ==
        Strategy::megatron_fsdp);
  CHECK(strategy("_target_: a.b.nvfsdp.NVFSDPManager, dp_size: none") == Strategy::megatron_fsdp);
  CHECK(strategy("_target_: DDPConfig, strategy: ddp") == Strategy::ddp);
  CHECK(strategy("_target_: DDPManager", {"distributed.strategy=fsdp2"}) == Strategy::fsdp2);
  CHECK(error_with("distributed: {_target_: x.DDPManager, strategy: fsdp2}") ==
        "r.yaml:2: distributed._target_: is the class of ddp, but distributed.strategy is fsdp2; want one of "
        "them, or classes that agree");
  CHECK(contains(error_with("distributed: {_target_: x.Other}"), "no class 'Other' in this build"));
}

TEST_CASE("keys of a strategy belong to that strategy") {
  const Recipe megatron = parse(
      with("distributed: {strategy: megatron_fsdp, data_parallel_sharding_strategy: optim, "
           "overlap_grad_reduce: false, overlap_param_gather: false, grad_reduce_in_fp32: false, "
           "average_in_collective: true}\ndist_env: {timeout_minutes: 0.5}\ndebug: {check_collectives: on}"));
  CHECK(megatron.distributed.zero_dp_strategy == ZeroLevel::optimizer);
  CHECK_FALSE(megatron.distributed.overlap_grad_reduce);
  CHECK(megatron.dist_env.timeout_minutes == 0.5);
  CHECK(megatron.debug.check_collectives);
  CHECK(megatron.no_effect ==
        std::vector<std::string>{"distributed.average_in_collective", "distributed.grad_reduce_in_fp32"});
  const Recipe fsdp2 = parse(
      with("distributed: {reshard_after_forward: false, defer_fsdp_grad_sync: false, offload_policy: {a: b}, "
           "patch_is_packed_sequence: true, mp_policy: {_target_: "
           "torch.distributed.fsdp.MixedPrecisionPolicy, param_dtype: torch.bfloat16, "
           "reduce_dtype: float32, output_dtype: bf16}}"));
  CHECK(fsdp2.distributed.reshard_after_forward == false);
  CHECK_FALSE(fsdp2.distributed.defer_fsdp_grad_sync);
  CHECK(fsdp2.distributed.mp_policy.param_dtype == DType::bf16);
  CHECK(fsdp2.distributed.mp_policy.reduce_dtype == DType::f32);
  CHECK(fsdp2.no_effect == std::vector<std::string>{"distributed.mp_policy.output_dtype",
                                                    "distributed.offload_policy",
                                                    "distributed.patch_is_packed_sequence"});

  const std::vector<std::pair<const char*, const char*>> cases{
      {"zero_dp_strategy: 2",
       "key 'zero_dp_strategy' belongs to megatron_fsdp; distributed.strategy is fsdp2, which is the "
       "default"},
      {"strategy: ddp, reshard_after_forward: true",
       "key 'reshard_after_forward' belongs to fsdp2; distributed.strategy is ddp"},
      {"strategy: ddp, mp_policy: {}", "key 'mp_policy' belongs to fsdp2"},
      {"strategy: megatron_fsdp, zero_dp_strategy: 4",
       "distributed.zero_dp_strategy: want one of 3, 2, 1, 0, optim_grads_params"},
      {"strategy: megatron_fsdp, zero_dp_strategy: 1, data_parallel_sharding_strategy: optim_grads",
       "is 2, but distributed.zero_dp_strategy is 1"},
      {"average_in_collective: true",
       "key 'average_in_collective' belongs to megatron_fsdp; distributed.strategy is fsdp2"},
      {"strategy: megatron_fsdp, average_in_collective: 2",
       "distributed.average_in_collective: want true or false"},
      {"strategy: megatron_fsdp, overlap_param_gather: false",
       "distributed.overlap_param_gather: is false, but overlap_grad_reduce is not"},
      {"strategy: megatron_fsdp, dp_replicate_size: 2",
       "distributed.dp_replicate_size: is 2, but only fsdp2 has replicas of sharded groups; "
       "distributed.strategy is megatron_fsdp; want 1 (or absent)"},
      {"dp_size: 0", "distributed.dp_size: want an integer from 1 to 1048576, found '0'"}};
  for (const auto& [keys, part] : cases) {
    const std::string message = error_with(cat("distributed: {", keys, "}"));
    CHECK_MESSAGE(contains(message, part), keys, ": ", message);
  }
  CHECK(contains(error_with("dist_env: {timeout_minutes: 0}"),
                 "dist_env.timeout_minutes: want a number above 0, at most 10080, found '0'"));
}
