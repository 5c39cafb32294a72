#pragma once
#include <string>

#include "data/datasets/dataset.h"
#include "data/json/json.h"
#include "data/tokenizer/tokenizer.h"

namespace nemocube {

/// The content of a row as text, special tokens included. Targets stand between ⟦ and ⟧; ‖ separates the
/// documents of a packed row.
std::string describe_supervision(const Sample& sample, const Tokenizer& tokenizer);

/// A row for `nemocube inspect`: id, input_ids, labels, text; text is null without a tokenizer.
Json inspect_row(const Sample& sample, const Tokenizer* tokenizer);

}  // namespace nemocube
