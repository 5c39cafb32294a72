#pragma once
#include <cstdint>

namespace nemocube {

class ConfigKeys;

/// The sizes of a dense MLP.
struct MlpConfig {
  std::int64_t intermediate_size = 21504;
  bool bias = false;

  void visit(ConfigKeys& keys);
  bool operator==(const MlpConfig&) const = default;
};

}  // namespace nemocube
