#pragma once
#include <string>
#include <string_view>

/// What recipes and environment variables say about pipelines in words.
namespace nemocube::recipe {

/// Throws Error listing the names unless `name` is that of a schedule: gpipe, 1f1b, interleaved1f1b,
/// interleavedzerobubble, zbv, or that of PyTorch's class for one of them. Upper and lower case are the same.
void check_schedule_name(std::string_view name);

/// Time of a block of each kind, of the embeddings, and of final norm, head and loss, relative to each other.
/// Defaults: NeMo AutoModel's.
struct BlockWeights {
  double mamba = 2, attention = 2, mlp = 1, moe = 3, embeddings = 0, head = 0;
  bool operator==(const BlockWeights&) const = default;
};

/// "moe=3,attention=2": the value of NEMOAUTOMODEL_PP_BLOCK_WEIGHTS. Spaces around words are skipped; what is not
/// named keeps its default. Throws Error naming the part that has another form, an unknown name, or a weight that
/// is no number from 0 on.
BlockWeights parse_block_weights(std::string_view text);

}  // namespace nemocube::recipe
