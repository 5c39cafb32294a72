#include <doctest/doctest.h>

#include <algorithm>

#include "tests/support/paths.h"
#include "train/ranks/rank_sizes.h"
#include "train/recipe/environment.h"

using namespace nemocube;
using nemocube::testing::source_path;

TEST_CASE("configs/recipes/nemotron_nano_v3_pp_ep_squad.yaml: every setting arrives") {
  const std::string samples = source_path("data/samples/");
  const Recipe r = load_recipe(
      source_path("configs/recipes/nemotron_nano_v3_pp_ep_squad.yaml"),
      {cat("model.pretrained_model_name_or_path=", source_path("tests/goldens/train20")),
       cat("dataset.path=", samples, "train.json"),
       cat("validation_dataset.path=", samples, "validation.json"), cat("tokenizer=", samples, "tokenizer")});
  CHECK(r.warnings.empty());
  CHECK(r.seed == 1111);
  CHECK(r.step_scheduler.global_batch_size == 256);
  CHECK(r.step_scheduler.local_batch_size == 64);
  CHECK(r.step_scheduler.ckpt_every_steps == 1000);
  CHECK(r.step_scheduler.val_every_steps == 50);
  CHECK(r.step_scheduler.max_steps == 50);
  CHECK(r.model->source == ModelSource::pretrained);
  CHECK_FALSE(r.checkpoint.enabled);
  CHECK(r.checkpoint.checkpoint_dir == "checkpoints/");
  CHECK(r.loss.kind == LossKind::masked);
  CHECK(r.optimizer->kind == OptimizerKind::sgd);
  CHECK(r.optimizer->lr == 5e-5);
  CHECK(r.optimizer->momentum == 0.9);
  CHECK(r.lr_scheduler->lr_decay_style == DecayStyle::cosine);
  CHECK(r.lr_scheduler->min_lr == 1e-6);
  CHECK(r.packed_sequence.packed_sequence_size == 0);
  CHECK(r.dataloader.shuffle);
  for (const DatasetSection& s : {*r.dataset, r.validation_datasets.at("default")}) {
    CHECK(s.kind == DatasetKind::squad);
    CHECK(s.dataset_name == "rajpurkar/squad");
    CHECK(s.seq_length == 1024);
    CHECK(s.padding == Padding::max_length);
    CHECK(s.truncation);
  }
  CHECK(r.dataset->split == "train");
  CHECK(r.validation_datasets.at("default").split == "validation");
  CHECK(r.validation_datasets.at("default").limit_dataset_samples == 128);

  const DistributedSection& d = r.distributed;
  CHECK(d.strategy == Strategy::fsdp2);
  CHECK_FALSE(d.dp_size);
  CHECK(d.dp_replicate_size == 1);
  CHECK(d.tp_size == 1);
  CHECK(d.cp_size == 1);
  CHECK(d.pp_size == 4);
  CHECK(d.ep_size == 2);
  CHECK_FALSE(d.sequence_parallel);
  CHECK(d.activation_checkpointing);
  REQUIRE(d.pipeline);
  CHECK(d.pipeline->pp_schedule == "interleaved1f1b");
  CHECK(d.pipeline->pp_microbatch_size == 8);
  CHECK(d.pipeline->round_virtual_stages_to_pp_multiple == Round::up);
  std::vector<std::ptrdiff_t> blocks;
  std::vector<std::string> all;
  for (const auto& part : d.pipeline->module_fqns_per_model_part) {
    const auto is_block = [](const std::string& name) { return name.starts_with("backbone.layers."); };
    blocks.push_back(std::ranges::count_if(part, is_block));
    CHECK(std::ranges::count(part, "backbone.rotary_emb") == 1);
    std::ranges::copy_if(part, std::back_inserter(all), is_block);
  }
  CHECK(blocks == std::vector<std::ptrdiff_t>{6, 7, 8, 8, 8, 7, 6, 2});
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i] == cat("backbone.layers.", i));
  CHECK(d.pipeline->module_fqns_per_model_part.front().front() == "backbone.embeddings");
  const auto& last = d.pipeline->module_fqns_per_model_part.back();
  CHECK(std::ranges::count(last, "backbone.norm_f") == 1);
  CHECK(std::ranges::count(last, "lm_head") == 1);

  CHECK(r.dist_env.backend == CommBackend::nccl);
  CHECK(r.dist_env.timeout_minutes == 10);
  const Environment e = resolve_environment(r, [](const char*) { return nullptr; });
  CHECK(e.to_set ==
        std::vector<std::pair<std::string, std::string>>{{"TORCH_NCCL_USE_COMM_NONBLOCKING", "1"},
                                                         {"PYTORCH_ALLOC_CONF", "expandable_segments:True"},
                                                         {"NEMOTRONH_EP_USE_DEEPEP_DISPATCH", "1"},
                                                         {"NEMOTRONH_EP_REQUIRE_DEEPEP", "1"},
                                                         {"NEMOTRONH_EP_PHYSICAL_PARTITION", "1"},
                                                         {"NEMOTRONH_EP_SYNC_INACTIVE_EXPERTS", "1"},
                                                         {"NEMOTRONH_EP_EXPERT_RESHARD_AFTER_FORWARD", "0"},
                                                         {"NEMOAUTOMODEL_PP_SKIP_OUTPUT_MERGE", "1"}});
  CHECK(e.settings.dispatcher == DispatcherKind::alltoall);
  CHECK(e.settings.expert_reshard_after_forward == false);

  const RankSizes plan = rank_sizes(d, 8);
  CHECK(plan.grid == GridSizes{.dp_shard = 2, .pp = 4, .ep = 2});
  CHECK_FALSE(plan.options.reshard_after_forward);
  CHECK(grad_accumulation_steps(r, plan.dp) == 2);
  CHECK(microbatches_of_step(r, plan.dp) == 16);
}
