#pragma once
#include "core/shard.h"
#include "data/json/json.h"

/// Shards in the headers and indices of files:
///     {"shape": [512, 64], "ranges": [[[0, 256]], [[0, 64]]], "flat": [0, 1000]}
/// "shape" is the global tensor's. "ranges" are Shard::ranges(), absent where no dimension is cut. "flat" is
/// Shard::flat_range(), absent without a flat range. For a whole tensor only the shape is given.
namespace nemocube {

Json to_json(const Shard& shard);
/// errors  Error naming the file, and the field that is missing or that no shard has
Shard shard_from_json(const JsonView& json);

}  // namespace nemocube
