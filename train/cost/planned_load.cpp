#include "train/cost/planned_load.h"

#include "train/assemble/from_recipe.h"

namespace nemocube {
namespace {

std::int64_t tokens_of_row(const Recipe& recipe) {
  constexpr std::int64_t usual = 4096;
  const std::int64_t packed = recipe.packed_sequence.packed_sequence_size;
  return packed > 0 ? packed : recipe.dataset->seq_length.value_or(usual);
}

bool is_plain(const KernelChoice& kernels) {
  const auto chosen = kernels.by_op.find("cross_entropy");
  return chosen != kernels.by_op.end() && chosen->second == "plain";
}

}  // namespace

StepLoad planned_load(const Recipe& recipe, const Stack& model, std::int64_t dp) {
  const MoeSection& moe = recipe.model->moe;
  StepLoad load;
  load.dtype = model.dtype();
  const std::int64_t halves = model.choices().diffusion.paradigm == Paradigm::block_diff ? 2 : 1;
  load.microbatch =
      Sequences::uniform(halves * loader_options(recipe, 0, dp).batch_size, tokens_of_row(recipe));
  load.microbatches = microbatches_of_step(recipe, dp);
  load.unlabelled = 1;
  load.loss_rows = recipe.loss.kind == LossKind::chunked ? recipe.loss.chunk_len : model.loss_chunk_rows;
  if (is_plain(recipe.kernels)) load.loss_rows = 0;
  load.checkpointing = recipe.distributed.activation_checkpointing;
  load.router_losses = {moe.aux_loss_coeff != 0, moe.seq_aux_loss_coeff != 0, moe.global_aux_loss_coeff != 0,
                        moe.z_loss_coeff != 0};
  return load;
}

std::string assumption(const Recipe& recipe, const ModelConfig& config) {
  const bool lengths =
      recipe.dataset->kind != DatasetKind::mock || recipe.packed_sequence.packed_sequence_size > 0;
  const bool experts = config.has_experts() && !recipe.model->backend.fake_balanced_gate;
  std::string text;
  if (lengths)
    text = cat("every row has ", tokens_of_row(recipe),
               " tokens of one document, each but the last with a label");
  if (experts) text += cat(text.empty() ? "" : "; ", "tokens are spread evenly over the experts");
  return text;
}

}  // namespace nemocube
