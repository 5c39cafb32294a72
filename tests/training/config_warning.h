#pragma once
#include <filesystem>
#include <string>

#include "tests/training/run_support.h"

namespace nemocube::testing {

/// Makes config.json of a directory one that is warned of, and returns the warning.
inline std::string make_config_warn(const std::filesystem::path& directory) {
  Json config = read_json_file(directory / "config.json");
  config["attention_dropout"] = 0.5;
  spit(directory / "config.json", dump_json(config));
  return "'attention_dropout' is 0.5 and has no effect";
}

}  // namespace nemocube::testing
