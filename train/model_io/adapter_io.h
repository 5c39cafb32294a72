#pragma once
#include <span>
#include <string>
#include <vector>

#include "data/hf/hf_weights.h"
#include "data/peft/peft_directory.h"
#include "parallel/comm/communicator.h"
#include "train/recipe/recipe.h"

/// Adapters (ModelChoices::lora) between the ranks' memory and directories. When adapters are read, a rank
/// holds one whole tensor at a time; when they are written, rank 0 holds all tensors.
namespace nemocube {

/// Fills each `value` that is not meta with its shard's part of the tensor in the directory.
void read_adapters(const PeftDirectory& directory, std::span<const NamedTensor> into);

/// The whole tensors in host memory on rank 0, meta tensors on all other ranks. All `ranks` call together,
/// and each gives its own parts, as for save_hf_weights(); null: one rank.
std::vector<NamedTensor> gather_adapters(std::span<const NamedTensor> own, Communicator* ranks);

/// AutoModel's file beside an adapter: the section `peft` without rank and alpha, which adapter_config.json
/// has.
std::string automodel_peft_config(const PeftSection& peft);

}  // namespace nemocube
