#pragma once
#include "train/loop/run_ranks.h"

namespace nemocube {

/// Throws Error on every rank, naming the first rank that runs another program, has another recipe, or reads other
/// files: such ranks would train another model without a word. Of large files the first and last MiB are compared.
void want_same_inputs(const Recipe& recipe, const RunRanks& ranks);

}  // namespace nemocube
