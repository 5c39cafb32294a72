#include "parallel/tensor_parallel/plan.h"

#include <algorithm>
#include <array>
#include <set>

#include "core/quote.h"

namespace nemocube {
namespace {

using Words = std::vector<std::string_view>;

/// What a module may be.
struct Choice {
  std::string_view pattern;
  TensorStyle style;        // the usual one
  bool replicable = false;  // may be replicated instead
  Words also = {};          // words of other plans that mean `style` here
};

/// The usual plan. Every module of every model matches one entry.
const std::vector<Choice>& usual_choices() {
  using enum TensorStyle;
  static const std::vector<Choice> table{
      {"backbone.embeddings", vocab_parallel, true, {"rowwise", "rowwise_rep"}},
      {"backbone.layers.*.norm", sequence_parallel},
      {"backbone.layers.*.mixer.q_proj", colwise, true},
      {"backbone.layers.*.mixer.k_proj", colwise, true},
      {"backbone.layers.*.mixer.v_proj", colwise, true},
      {"backbone.layers.*.mixer.o_proj", rowwise, true},
      {"backbone.layers.*.mixer.in_proj", colwise, true},
      {"backbone.layers.*.mixer.out_proj", rowwise, true},
      {"backbone.layers.*.mixer.up_proj", colwise, true},
      {"backbone.layers.*.mixer.down_proj", rowwise, true},
      {"backbone.layers.*.mixer.gate", sequence_parallel},
      {"backbone.layers.*.mixer.fc1_latent_proj", sequence_parallel},
      {"backbone.layers.*.mixer.fc2_latent_proj", sequence_parallel},
      {"backbone.layers.*.mixer.experts.up_proj", expert_colwise},
      {"backbone.layers.*.mixer.experts.down_proj", expert_rowwise},
      {"backbone.layers.*.mixer.shared_experts.up_proj", colwise, true},
      {"backbone.layers.*.mixer.shared_experts.down_proj", rowwise, true},
      {"backbone.norm_f", sequence_parallel},
      {"lm_head", vocab_parallel, true, {"colwise", "colwise_rep"}},
  };
  return table;
}

constexpr std::array<std::string_view, 7> style_names{"replicated",     "colwise",           "rowwise",
                                                      "vocab_parallel", "sequence_parallel", "expert_colwise",
                                                      "expert_rowwise"};

bool is_known(std::string_view word) {
  return std::ranges::count(style_names, word) || word == "colwise_rep" || word == "rowwise_rep";
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

std::string_view without_ending(std::string_view name, std::string_view ending) {
  return name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : name;
}

std::string module_of(std::string_view tensor) {
  std::string_view name = tensor;
  for (const char* ending : {".weight", ".bias", ".e_score_correction_bias"})
    name = without_ending(name, ending);
  for (const char* member : {".conv1d", ".A_log", ".D", ".dt_bias", ".norm"}) {
    const std::string_view owner = without_ending(name, member);
    if (owner != name && owner.ends_with(".mixer")) return std::string(owner) + ".in_proj";
  }
  return std::string(name);
}

const Choice& choice_of(std::string_view module) {
  const auto found = std::ranges::find_if(
      usual_choices(), [&](const Choice& c) { return pattern_matches(c.pattern, module); });
  expect(found != usual_choices().end(), "the usual tensor-parallel plan has no rule for '", module, "'");
  return *found;
}

TensorStyle style_as(const Choice& choice, std::string_view word, std::string_view module) {
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

std::string_view name_of(TensorStyle style) { return style_names[static_cast<std::size_t>(style)]; }

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
  for (const Choice& c : usual_choices())
    all.push_back({std::string(c.pattern), std::string(name_of(c.style))});

  std::set<std::size_t> matched, used;
  std::string known;  // entries of the usual plan that the model has
  for (const TensorSpec& spec : tensor_specs(config)) {
    const std::string module = module_of(spec.name);
    if (styles_.contains(module)) continue;
    std::size_t counting = all.size();
    for (std::size_t i = all.size(); i-- > 0;)
      if (pattern_matches(all[i].pattern, module)) {
        matched.insert(i);
        counting = i;
      }
    used.insert(counting);
    styles_.emplace(module, style_as(choice_of(module), all.at(counting).style, module));
  }
  for (std::size_t i = own; i < all.size(); ++i)
    if (matched.contains(i)) known += (known.empty() ? "" : ", ") + all[i].pattern;
  for (std::size_t i = 0; i < own; ++i)
    require(matched.contains(i), "the tensor-parallel plan: ", quote(all[i].pattern),
            " matches no module of this model; the modules are ", known);
  check_whole_mixers(styles_);
  for (const std::size_t i : used) rules_.push_back(all[i]);
}

TensorStyle TensorParallelPlan::style(std::string_view tensor) const {
  const auto found = styles_.find(module_of(tensor));
  expect(found != styles_.end(), "the tensor-parallel plan has no module '", tensor, "'");
  return found->second;
}

bool TensorParallelPlan::cuts_any(std::string_view ending) const {
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
