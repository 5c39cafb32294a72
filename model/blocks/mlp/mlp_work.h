#pragma once
#include "model/blocks/block_type.h"

namespace nemocube {

/// The work of a squared-ReLU MLP on rows [rows, width] with `inner` hidden channels on the rank.
void add_mlp_work(BlockWork& work, double rows, double width, double inner);
/// The work of the squared ReLU of so many numbers.
void add_activation_work(BlockWork& work, double numbers);

}  // namespace nemocube
