#include "parallel/tensor_parallel/plan.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>

#include "core/quote.h"
#include "model/blocks/block_type.h"

namespace nemocube {
namespace {

/// Whether some block has a norm behind its mixer.
bool has_norm_after(const ModelConfig& config) {
  const auto has = [](const BlockConfig& sizes) { return sizes.residual == Residual::norm_before_and_after; };
  return has(config.common()) ||
         std::ranges::any_of(config.own_configs, [&](const auto& own) { return has(own.second); });
}

/// Whether a block of this slot of layers has a norm of its own.
bool has_norm(const ModelConfig& config, int slot) {
  for (std::int64_t block = 0; block < config.num_layers(); ++block)
    if (config.names.slot(block) == slot && config.block(block).residual != Residual::shared_norm)
      return true;
  return false;
}

/// The usual rules, which match every module of the model: those of all kinds of blocks, by the names of the
/// kinds.
std::vector<TensorParallelRule> usual_rules(const ModelSetup& setup) {
  const ModelConfig& config = setup.config;
  std::vector<TensorParallelRule> rules;
  const auto add = [&](const TensorName& module, TensorStyle style) {
    std::string pattern = config.names.pattern(module);
    if (std::ranges::find(rules, pattern, &TensorParallelRule::pattern) == rules.end())
      rules.push_back({std::move(pattern), std::string(name_of(style))});
  };
  add(embeddings_name(), TensorStyle::vocab_parallel);
  const std::vector<std::int64_t> slots = config.names.first_of_slots();
  const bool norm_after = has_norm_after(config);
  for (const std::int64_t block : slots) {
    if (has_norm(config, config.names.slot(block)))
      add(block_name(block) / "norm", TensorStyle::sequence_parallel);
    if (norm_after) add(block_name(block) / post_norm, TensorStyle::sequence_parallel);
  }
  std::vector<BlockKind> kinds = config.kinds();
  std::ranges::sort(kinds, {}, [](BlockKind kind) { return name_of(kind); });
  const auto add_mixers = [&](const TensorName& block) {
    for (const BlockKind kind : kinds)
      for (const BlockTensor& tensor : kind->tensors())
        add(mixer_of(block) / module_of(tensor), tensor.cut.style);
  };
  for (const std::int64_t block : slots) add_mixers(block_name(block));
  add(final_norm_name(), TensorStyle::sequence_parallel);
  if (!config.tie_word_embeddings) add(head_name(), TensorStyle::vocab_parallel);
  if (setup.choices.mtp.depths == 0) return rules;
  for (const char* whole : {"norm", mtp_embedding_norm, mtp_hidden_norm, mtp_join, mtp_final_norm})
    add(depth_name(0) / whole, TensorStyle::sequence_parallel);
  if (norm_after) add(depth_name(0) / post_norm, TensorStyle::sequence_parallel);
  add_mixers(depth_name(0));
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

using ModuleStyle = std::pair<const TensorName, TensorStyle>;

void check_alike(const ModuleStyle& a, const ModuleStyle& b, const ModelNames& names, const char* why = "") {
  require((a.second == TensorStyle::replicated) == (b.second == TensorStyle::replicated),
          "the tensor-parallel plan says ", name_of(a.second), " for '", names.text(a.first), "' and ",
          name_of(b.second), " for '", names.text(b.first), "'; want both cut or both replicated", why);
}

void check_whole_mixers(const std::map<TensorName, TensorStyle>& styles, const ModelNames& names) {
  std::map<TensorName, const ModuleStyle*> first_of;  // by what the modules are part of
  for (const ModuleStyle& entry : styles)
    if (entry.first.in_mixer())
      check_alike(*first_of.emplace(entry.first.around(), &entry).first->second, entry, names);
}

/// Mixers on one norm enter and leave the residual stream together (SharedWays).
void check_shared_norms(const std::map<TensorName, TensorStyle>& styles, const ModelConfig& config) {
  const auto entry = [&](std::int64_t block) -> const ModuleStyle& {
    const BlockKind kind = config.blocks[static_cast<std::size_t>(block)];
    return *styles.find(mixer_name(block, kind->entry(config.block(block))));
  };
  for (std::int64_t block = 0; block < config.num_layers(); ++block)
    if (config.shares_norm_with_next(block_name(block)))
      check_alike(entry(block), entry(block + 1), config.names,
                  ": their blocks work on the same norm, so that what they send is sent once");
}

}  // namespace

TensorParallelPlan::TensorParallelPlan(const ModelSetup& setup, bool sequence_parallel,
                                       const std::vector<TensorParallelRule>& rules)
    : sequence_parallel_(sequence_parallel), names_(setup.config.names) {
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
  std::ranges::move(usual_rules(setup), std::back_inserter(all));

  std::set<std::size_t> matched, used;
  std::string known;  // entries of the usual plan that the model has
  for (const TensorSpec& spec : tensor_specs(setup)) {
    if (styles_.contains(spec.module)) continue;
    const std::string module = names_.text(spec.module);
    std::size_t counting = all.size();
    for (std::size_t i = all.size(); i-- > 0;)
      if (pattern_matches(all[i].pattern, module)) {
        matched.insert(i);
        counting = i;
      }
    used.insert(counting);
    styles_.emplace(spec.module, style_as(*spec.cut, all.at(counting).style, module));
  }
  for (std::size_t i = own; i < all.size(); ++i)
    if (matched.contains(i)) known += (known.empty() ? "" : ", ") + all[i].pattern;
  for (std::size_t i = 0; i < own; ++i)
    require(matched.contains(i), "the tensor-parallel plan: ", quote(all[i].pattern),
            " matches no module of this model; the modules are ", known);
  check_whole_mixers(styles_, names_);
  check_shared_norms(styles_, setup.config);
  for (const std::size_t i : used) rules_.push_back(all[i]);
}

TensorStyle TensorParallelPlan::style(const TensorName& module) const {
  const auto found = styles_.find(module);
  expect(found != styles_.end(), "the tensor-parallel plan has no module '", names_.text(module), "'");
  return found->second;
}

bool TensorParallelPlan::cuts_any(std::string_view module_of_block) const {
  return std::ranges::any_of(styles_, [&](const auto& entry) {
    return entry.first.in_mixer() && entry.first.member == module_of_block &&
           entry.second != TensorStyle::replicated;
  });
}

}  // namespace nemocube
