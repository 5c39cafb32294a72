#pragma once
#include "data/hf/hf_weights.h"
#include "data/peft/peft_directory.h"

namespace nemocube {

/// W + s B A in the place of every adapted weight W, for copy_hf_model(). The product and the sum are formed
/// in f32 (f64) and rounded once. The directory must outlive the result.
WeightChange merge_of(const PeftDirectory& adapter);

}  // namespace nemocube
