#pragma once
#include <string>
#include <vector>

namespace nemocube {

/// The arguments of the program, with the overrides of `train`, `eval` and `inspect` that are spelled as NeMo
/// AutoModel's (`--optimizer.lr 1e-4`, `--optimizer.lr=1e-4`, `--checkpoint.enabled` alone for true, `--seed 5`)
/// spelled out for --set: `--set optimizer.lr=1e-4`.
std::vector<std::string> spell_out_overrides(const std::vector<std::string>& arguments);

}  // namespace nemocube
