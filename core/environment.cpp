#include "core/environment.h"

#include <cstdlib>

namespace nemocube {

const char* environment_variable(KnownVariable variable) { return std::getenv(variable.name()); }
const char* variable_named_in_recipe(const std::string& name) { return std::getenv(name.c_str()); }
const char* environment_variable(const EnvironmentVariable& variable) { return std::getenv(variable.name); }

}  // namespace nemocube
