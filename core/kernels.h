#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/autograd.h"

/// Named variants of operations. An operation with more than one implementation registers the names, default
/// first:
///     const RegisterVariants variants("ssd_scan", {"chunked", "recurrent"});
/// and asks variant(ctx, "ssd_scan") which to run. A recipe's `kernels:` section makes the choice.
namespace nemocube {

struct KernelChoice {
  std::map<std::string, std::string, std::less<>> by_op;
};

class RegisterVariants {
 public:
  RegisterVariants(std::string op, std::vector<std::string> names);
};

/// All operations with variants and their names, default first.
const std::map<std::string, std::vector<std::string>, std::less<>>& kernel_variants();
/// Throws Error naming the operation or variant that does not exist and those that do.
void check_kernel_choice(const KernelChoice& choice);
/// Index of the chosen variant in the registered list (0: default).
int variant(const Context& ctx, std::string_view op);

}  // namespace nemocube
