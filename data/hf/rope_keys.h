#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>

#include "data/json/json.h"
#include "model/blocks/attention/rope_config.h"

/// The rotary embedding in config.json, for all families with one.
namespace nemocube {

/// Reads either spelling: `rope_parameters` {rope_type, rope_theta, ...} of transformers 5, or `rope_theta`
/// with `rope_scaling` {rope_type or type, ...} of older releases. Both may be there if they mean the same.
/// Inside the object null counts as absent. Values as in transformers 5.23:
///   rope_theta                        of the object, else of the whole config, else `theta`
///   original_max_position_embeddings  of the whole config, else of the object, else `positions`
///   factor                            required, except that longrope and yarn take
///                                     positions / original_max_position_embeddings where yarn has a null
///                                     and that the 1 of proportional need not be given
///   partial_rotary_factor             of proportional: of the object, else of the whole config, else 1
///   beta_fast, beta_slow              0 is the default
/// A value that the type does not use has no effect, and a warning says so. Throws Error naming the key for
/// an unknown type or key, for a value that is missing, and where the two spellings differ.
///
/// `positions`: max_position_embeddings of the model. `also`: keys that a family has in the object and reads
/// by itself. `partial`: of families that have a partial_rotary_factor, the one where the key is absent, in
/// the object and in the whole config. In other families the key has an effect beside proportional only:
/// beside default a warning says so, and beside other types it is an error.
RopeConfig read_rope(const JsonView& config, double theta, std::int64_t positions,
                     std::span<const std::string_view> also = {}, std::optional<double> partial = {});
/// The same of one such object, for families that have several. `config`: the whole.
RopeConfig read_rope_object(const JsonView& object, const JsonView& config, double theta,
                            std::int64_t positions);

/// Writes the older spelling, which every release reads, and a partial_rotary_factor that is not 1. That of
/// proportional is in the object, as its class reads it.
void write_rope(const RopeConfig& rope, Json& to);
/// All keys of rope_parameters.
Json rope_object(const RopeConfig& rope);
/// Writes `rope_parameters`, for families whose class reads nothing else.
void write_rope_parameters(const RopeConfig& rope, Json& to);

}  // namespace nemocube
