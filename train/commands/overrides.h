#pragma once
#include <string>
#include <vector>

namespace nemocube {

/// Rewrites the program's arguments: overrides of `train`, `eval` and `inspect` in NeMo AutoModel's spelling
/// (`--optimizer.lr 1e-4`, `--optimizer.lr=1e-4`, `--checkpoint.enabled` alone for true, `--seed 5`) become
/// `--set optimizer.lr=1e-4`.
std::vector<std::string> spell_out_overrides(const std::vector<std::string>& arguments);

}  // namespace nemocube
