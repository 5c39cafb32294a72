#include "parallel/tensor_parallel/plan.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>

#include "core/quote.h"
#include "model/blocks/block_type.h"

namespace nemocube {
namespace {

/// The usual rules, which match every module of the model: those of all kinds of blocks, by the names of the kinds.
std::vector<TensorParallelRule> usual_rules(const NemotronHConfig& config) {
  std::vector<TensorParallelRule> rules;
  const auto add = [&](std::string pattern, TensorStyle style) {
    if (std::ranges::find(rules, pattern, &TensorParallelRule::pattern) == rules.end())
      rules.push_back({std::move(pattern), std::string(name_of(style))});
  };
  add("backbone.embeddings", TensorStyle::vocab_parallel);
  add("backbone.layers.*.norm", TensorStyle::sequence_parallel);
  std::vector<BlockKind> kinds = config.kinds();
  std::ranges::sort(kinds, {}, [](BlockKind kind) { return name_of(kind); });
  for (const BlockKind kind : kinds)
    for (const BlockTensor& tensor : kind->tensors())
      add(cat("backbone.layers.*.mixer.", module_of(tensor)), tensor.cut.style);
  add("backbone.norm_f", TensorStyle::sequence_parallel);
  add("lm_head", TensorStyle::vocab_parallel);
  if (config.mtp.depths == 0) return rules;
  for (const char* whole : {"norm", "enorm", "hnorm", "eh_proj", "final_layernorm"})
    add(cat("mtp.layers.*.", whole), TensorStyle::sequence_parallel);
  for (const BlockKind kind : kinds)
    for (const BlockTensor& tensor : kind->tensors())
      add(cat("mtp.layers.*.mixer.", module_of(tensor)), tensor.cut.style);
  return rules;
}

bool is_known(std::string_view word) {
  for (int style = 0; style <= static_cast<int>(TensorStyle::expert_rowwise); ++style)
    if (word == name_of(static_cast<TensorStyle>(style))) return true;
  return word == "colwise_rep" || word == "rowwise_rep";
}

bool is_skipped(std::string_view word) {
  constexpr std::array<std::string_view, 4> words{"replicated_with_grad_allreduce", "local_colwise",
                                                  "local_rowwise", "gather"};
  return word.starts_with("ep_") || std::ranges::count(words, word);
}

bool pattern_matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*')
    return pattern_matches(pattern.substr(1), name) ||
           (!name.empty() && name[0] != '.' && pattern_matches(pattern, name.substr(1)));
  return !name.empty() && pattern[0] == name[0] && pattern_matches(pattern.substr(1), name.substr(1));
}

TensorStyle style_as(const CutRule& choice, std::string_view word, std::string_view module) {
  if (word == name_of(choice.style) || std::ranges::count(choice.also, word)) return choice.style;
  require(choice.replicable && word == name_of(TensorStyle::replicated), "the tensor-parallel plan says '",
          word, "' for '", module, "'; want ", name_of(choice.style),
          choice.replicable ? " or replicated" : "");
  return TensorStyle::replicated;
}

void check_whole_mixers(const std::map<std::string, TensorStyle, std::less<>>& styles) {
  using Entry = std::pair<const std::string, TensorStyle>;
  std::map<std::string, const Entry*> first_of;  // by what the modules are part of
  for (const Entry& entry : styles) {
    const auto& [module, style] = entry;
    if (module.find(".mixer.") == std::string::npos) continue;
    const Entry& first = *first_of.emplace(module.substr(0, module.rfind('.')), &entry).first->second;
    require((style == TensorStyle::replicated) == (first.second == TensorStyle::replicated),
            "the tensor-parallel plan says ", name_of(first.second), " for '", first.first, "' and ",
            name_of(style), " for '", module, "'; want both cut or both replicated");
  }
}

}  // namespace

TensorParallelPlan::TensorParallelPlan(const NemotronHConfig& config, bool sequence_parallel,
                                       const std::vector<TensorParallelRule>& rules)
    : sequence_parallel_(sequence_parallel) {
  std::vector<TensorParallelRule> all;
  for (const TensorParallelRule& rule : rules) {
    if (is_skipped(rule.style)) {
      notes_.push_back(cat("the tensor-parallel plan: ", quote(rule.style), " for ", quote(rule.pattern),
                           " is skipped, the grid decides here"));
      continue;
    }
    require(is_known(rule.style), "Unknown parallel style ", quote(rule.style), " for ", quote(rule.pattern),
            "; want one of replicated, colwise, rowwise, colwise_rep, rowwise_rep, sequence_parallel, "
            "vocab_parallel, expert_colwise, expert_rowwise");
    all.push_back(rule);
  }
  const std::size_t own = all.size();
  std::ranges::move(usual_rules(config), std::back_inserter(all));

  std::set<std::size_t> matched, used;
  std::string known;  // entries of the usual plan that the model has
  for (const TensorSpec& spec : tensor_specs(config)) {
    const std::string& module = spec.module;
    if (styles_.contains(module)) continue;
    std::size_t counting = all.size();
    for (std::size_t i = all.size(); i-- > 0;)
      if (pattern_matches(all[i].pattern, module)) {
        matched.insert(i);
        counting = i;
      }
    used.insert(counting);
    styles_.emplace(module, style_as(*spec.cut, all.at(counting).style, module));
  }
  for (std::size_t i = own; i < all.size(); ++i)
    if (matched.contains(i)) known += (known.empty() ? "" : ", ") + all[i].pattern;
  for (std::size_t i = 0; i < own; ++i)
    require(matched.contains(i), "the tensor-parallel plan: ", quote(all[i].pattern),
            " matches no module of this model; the modules are ", known);
  check_whole_mixers(styles_);
  for (const std::size_t i : used) rules_.push_back(all[i]);
}

TensorStyle TensorParallelPlan::style(std::string_view module) const {
  const auto found = styles_.find(module);
  expect(found != styles_.end(), "the tensor-parallel plan has no module '", module, "'");
  return found->second;
}

bool TensorParallelPlan::cuts_any(std::string_view module_of_block) const {
  const std::string ending = cat(".mixer.", module_of_block);
  return std::ranges::any_of(styles_, [&](const auto& entry) {
    return entry.first.ends_with(ending) && entry.second != TensorStyle::replicated;
  });
}

std::string to_yaml(const std::vector<TensorParallelRule>& rules) {
  std::string text;
  for (const TensorParallelRule& rule : rules) text += cat('"', rule.pattern, "\": ", rule.style, '\n');
  return text;
}

}  // namespace nemocube
