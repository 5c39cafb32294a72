#pragma once
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "data/json/json.h"
#include "model/blocks/config_keys.h"
#include "model/config.h"

/// Values of a config and their keys in config.json (model/blocks/config_keys.h). A key and its alias may
/// both be present if they agree. An integer may also be a list of the same integer for each block.
namespace nemocube {

/// The value of a key that may have several names. Error where two of them are present and differ.
std::optional<JsonView> find_any(const JsonView& object, std::initializer_list<const char*> names);

/// Reads the values that are visited. A key that is absent or null leaves its value alone, but that null is 0
/// for a nullable key. Throws Error naming the place, wish and value.
class ReadKeys final : public ConfigKeys {
 public:
  explicit ReadKeys(const JsonView& object) : object_(object) {}
  void key(Names names, std::int64_t& value) override;
  void key(Names names, double& value) override;
  void key(Names names, bool& value) override;
  void nullable_key(Names names, std::int64_t& value) override;
  void limits(Names names, double& low, double& high) override;

 private:
  const JsonView& object_;
};

/// Writes the values that are visited, each under its first name.
class WriteKeys final : public ConfigKeys {
 public:
  /// always_limits: limits are written also where they clamp nothing.
  explicit WriteKeys(Json& to, bool always_limits = false) : to_(to), always_limits_(always_limits) {}
  void key(Names names, std::int64_t& value) override;
  void key(Names names, double& value) override;
  void key(Names names, bool& value) override;
  void nullable_key(Names names, std::int64_t& value) override;
  /// Kept for finish(). Limits that are no clamp, which is the default everywhere, are left out.
  void limits(Names names, double& low, double& high) override;
  /// Writes the limits behind all other keys.
  void finish();

 private:
  Json& to_;
  bool always_limits_;
  Json limits_ = Json::object();
};

/// Whether a block may have its own value for the key of this name or alias (ModelConfig::own_configs): the
/// sizes of the kinds of blocks.
bool is_block_key(std::string_view name);
/// Whether null is a value of such a block key.
bool is_nullable_block_key(std::string_view name);
/// The keys in which `own` differs from `common`, with the values of `own`, each under its first name.
Json differing_block_keys(const BlockConfig& common, const BlockConfig& own);

}  // namespace nemocube
