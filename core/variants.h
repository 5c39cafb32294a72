#pragma once
#include <cstddef>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/autograd.h"

/// Variants of operations, chosen by name in a recipe's `kernels:` section. An operation with more than one
/// implementation lists an enumerator and a name for each, the default first, and asks which one to run. A
/// device has a variant when it has all of the variant's kernels (core/kernel.h):
///     enum class ScanVariant { chunked, recurrent };
///     const Variants<ScanVariant> scan_variants("ssd_scan",
///                                      {{ScanVariant::chunked, "chunked"}, {ScanVariant::recurrent,
///                                      "recurrent"}});
///     .. scan_variants.chosen(ctx, x.device()) ..
namespace nemocube {

struct KernelChoice {
  std::map<std::string, std::string, std::less<>> by_op;
};

/// All operations with variants and their names, default first.
const std::map<std::string, std::vector<std::string>, std::less<>>& kernel_variants();
/// Throws Error when an operation or variant in `choice` does not exist
/// on `device`. The text lists what exists.
void check_kernel_choice(const KernelChoice& choice, Device device = Device::cpu);

namespace kernels_detail {
void register_variants(const std::string& op, std::vector<std::string> names);
std::size_t chosen_index(const Context& ctx, const std::string& op, Device device);
}  // namespace kernels_detail

template <class Variant>
class Variants {
 public:
  struct Entry {
    Variant variant;
    std::string name;
  };
  Variants(std::string op, std::initializer_list<Entry> entries) : op_(std::move(op)) {
    std::vector<std::string> names;
    for (const Entry& entry : entries) {
      variants_.push_back(entry.variant);
      names.push_back(entry.name);
    }
    kernels_detail::register_variants(op_, std::move(names));
  }
  /// The variant that ctx.kernels names for this operation, else the first that `device` has. Throws Error
  /// when no variant has that name or the device lacks the variant; the text lists all that exist.
  Variant chosen(const Context& ctx, Device device) const {
    return variants_[kernels_detail::chosen_index(ctx, op_, device)];
  }

 private:
  std::string op_;
  std::vector<Variant> variants_;
};

}  // namespace nemocube
