#pragma once
#include <string>

#include "data/datasets/dataset.h"
#include "data/json/json.h"
#include "data/tokenizer/tokenizer.h"

namespace nemocube {

/// The content of a row as text, special tokens included. Targets stand between ⟦ and ⟧; ‖ separates the
/// documents of a packed row.
std::string describe_supervision(const Sample& sample, const Tokenizer& tokenizer);

/// A row for `nemocube inspect`: id, input_ids, labels, text; text is null without a tokenizer. With
/// `unshifted` also loss_mask: 1 where the token at a position is a target; NeMo AutoModel's unshifted rows
/// have this in place of labels.
Json inspect_row(const Sample& sample, const Tokenizer* tokenizer, bool unshifted = false);

}  // namespace nemocube
