#pragma once
#include <string>
#include <string_view>

#include "model/config.h"
#include "parallel/schedule/stages.h"

/// Module names as people write them in recipes: those of the model's files, and those of Hugging Face's and
/// NeMo AutoModel's classes.
namespace nemocube {

/// The same name with "model." for "backbone.", as NeMo AutoModel and Hugging Face's classes call it.
std::string automodel_name(std::string_view name_in_files);

/// The modules that module_fqns_per_model_part can name (manual_stages()): embeddings or embed_tokens,
/// layers.N, norm_f or norm, each with the prefix "backbone." or "model.", and lm_head. rotary_emb (with
/// prefix) has no parameters here.
StageModules stage_modules(const ModelConfig& config);

}  // namespace nemocube
