#include "train/assemble/group_rule.h"

#include <algorithm>

#include "data/text/pattern.h"

namespace nemocube {
namespace {

Pattern compile(const std::string& pattern) {
  try {
    return Pattern(pattern);
  } catch (const Error& e) {
    fail("optimizer.param_group_overrides: '", pattern, "' is no regular expression: ", e.what());
  }
}

}  // namespace

GroupRule group_rule(const OptimizerSection& section, const ParameterStore& parameters) {
  std::vector<std::pair<Pattern, GroupFactors>> overrides;
  for (const ParamGroupOverride& o : section.param_group_overrides) {
    const Pattern& pattern =
        overrides.emplace_back(compile(o.pattern), GroupFactors{o.lr_mult, o.wd_mult}).first;
    const bool used = std::ranges::any_of(
        parameters.all(), [&](const Parameter& p) { return p.wants_grad() && pattern.found_in(p.name); });
    require(used, "optimizer.param_group_overrides: '", o.pattern,
            "' is found in the name of no trainable parameter; want a part of names such as '",
            parameters.all().front().name, "' (canonical names, listed by nemocube inspect --model)");
  }
  return [overrides, plain_1d = section.no_weight_decay_on_1d](const Parameter& p) {
    GroupFactors factors;
    for (const auto& [pattern, chosen] : overrides)
      if (pattern.found_in(p.name)) {
        factors = chosen;
        break;
      }
    if (plain_1d && (p.value.ndim() == 1 || p.name.ends_with(".bias"))) factors.weight_decay = 0;
    return factors;
  };
}

}  // namespace nemocube
