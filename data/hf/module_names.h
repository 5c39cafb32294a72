#pragma once
#include "model/config.h"
#include "parallel/schedule/stages.h"

/// Module names as people write them in recipes: as in the model's files, or as in the classes of Hugging
/// Face and NeMo AutoModel (NameTable::class_name).
namespace nemocube {

/// The modules that module_fqns_per_model_part can name (manual_stages()): embeddings or embed_tokens,
/// layers.N, norm_f or norm, each with the prefix of the model's body in files or in classes ("backbone." or
/// "model."), and lm_head. rotary_emb (with prefix) has no parameters here.
StageModules stage_modules(const ModelConfig& config);

}  // namespace nemocube
