#pragma once
#include <cstdint>
#include <initializer_list>

namespace nemocube {

/// Visits the values of a config with their keys in config.json: the usual key and its aliases. A kind of
/// block hands over its values in the order of a written config.json.
class ConfigKeys {
 public:
  using Names = std::initializer_list<const char*>;
  virtual void key(Names names, std::int64_t& value) = 0;
  virtual void key(Names names, double& value) = 0;
  virtual void key(Names names, bool& value) = 0;
  /// A size that a block may lack: null in config.json is 0.
  virtual void nullable_key(Names names, std::int64_t& value) = 0;
  /// A list of two numbers, the upper of which may be infinite.
  virtual void limits(Names names, double& low, double& high) = 0;

 protected:
  ~ConfigKeys() = default;
};

}  // namespace nemocube
