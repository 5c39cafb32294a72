#include "parallel/tensor_parallel/plan.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "core/quote.h"
#include "model/blocks/block_type.h"
#include "model/blocks/per_layer_input/per_layer_input_block.h"
#include "parallel/tensor_parallel/words.h"

namespace nemocube {
namespace {

/// Whether some block has a norm behind its mixer.
bool has_norm_after(const ModelConfig& config) {
  const auto has = [](const BlockConfig& sizes) { return has_norm_after(sizes.residual); };
  return has(config.common()) ||
         std::ranges::any_of(config.own_configs, [&](const auto& own) { return has(own.second); });
}

/// Whether a block of this slot of layers has a norm of its own.
bool has_norm(const ModelConfig& config, int slot) {
  for (std::int64_t block = 0; block < config.num_layers(); ++block)
    if (config.names.slot(block) == slot && has_norm_before(config.block(block).residual)) return true;
  return false;
}

/// Whether a block of this slot of layers has a layer_scalar behind it.
bool has_layer_scalar(const ModelConfig& config, int slot) {
  for (std::int64_t block = 0; config.layer_scalars && block < config.num_layers(); ++block)
    if (config.names.slot(block) == slot && config.has_layer_scalar(block_name(block))) return true;
  return false;
}

/// Whether a block of this kind and this slot of layers has the tensor.
bool has_tensor(const ModelConfig& config, int slot, BlockKind kind, const BlockTensor& tensor) {
  for (std::int64_t block = 0; block < config.num_layers(); ++block)
    if (config.blocks[static_cast<std::size_t>(block)] == kind && config.names.slot(block) == slot &&
        tensor.shape(config.block(block)))
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
  if (config.count(per_layer_input_block) > 0) {
    add(per_layer_embeddings_name(), TensorStyle::vocab_parallel);
    add(per_layer_model_projection_name(), TensorStyle::sequence_parallel);
    add(per_layer_projection_norm_name(), TensorStyle::sequence_parallel);
  }
  const std::vector<std::int64_t> slots = config.names.first_of_slots();
  const bool norm_after = has_norm_after(config);
  for (const std::int64_t block : slots) {
    if (has_norm(config, config.names.slot(block)))
      add(block_name(block) / "norm", TensorStyle::sequence_parallel);
    if (norm_after) add(block_name(block) / post_norm, TensorStyle::sequence_parallel);
    if (has_layer_scalar(config, config.names.slot(block)))
      add(block_name(block) / layer_scalar, TensorStyle::sequence_parallel);
  }
  std::vector<BlockKind> kinds = config.kinds();
  std::ranges::sort(kinds, {}, [](BlockKind kind) { return name_of(kind); });
  for (const std::int64_t block : slots)
    for (const BlockKind kind : kinds)
      for (const BlockTensor& tensor : kind->tensors())
        if (has_tensor(config, config.names.slot(block), kind, tensor))
          add(mixer_name(block, module_of(tensor)), tensor.cut.style);
  add(final_norm_name(), TensorStyle::sequence_parallel);
  if (!config.tie_word_embeddings) add(head_name(), TensorStyle::vocab_parallel);
  if (setup.choices.mtp.depths == 0) return rules;
  for (const char* whole : {"norm", mtp_embedding_norm, mtp_hidden_norm, mtp_join, mtp_final_norm})
    add(depth_name(0) / whole, TensorStyle::sequence_parallel);
  if (norm_after) add(depth_name(0) / post_norm, TensorStyle::sequence_parallel);
  for (const BlockKind kind : kinds)
    for (const BlockTensor& tensor : kind->tensors())
      add(mixer_of(depth_name(0)) / module_of(tensor), tensor.cut.style);
  return rules;
}

bool pattern_matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*')
    return pattern_matches(pattern.substr(1), name) ||
           (!name.empty() && name[0] != '.' && pattern_matches(pattern, name.substr(1)));
  return !name.empty() && pattern[0] == name[0] && pattern_matches(pattern.substr(1), name.substr(1));
}

constexpr std::string_view summed_gradient = "replicated_with_grad_allreduce";

/// The words that a module can have: the usual one, and what says that each rank has all of it.
std::vector<std::string_view> words_of(const CutRule& cut, bool cut_rows) {
  std::vector<std::string_view> words{cut.of_each_head ? summed_gradient : name_of(cut.style)};
  const std::string_view whole = name_of(TensorStyle::replicated);
  if (cut.style == TensorStyle::sequence_parallel)
    words.push_back(cut_rows || cut.always_own_rows ? summed_gradient : whole);
  else if (cut.replicable && words[0] != whole)
    words.push_back(whole);
  return words;
}

/// cut_rows: TensorParallelPlan::sequence_parallel().
TensorStyle style_as(const CutRule& cut, std::string_view word, std::string_view module, bool cut_rows) {
  const TensorPlanWord& known = *find_tensor_plan_word(word);
  const std::string_view meant = known.means.empty() ? word : known.means;
  const std::vector<std::string_view> words = words_of(cut, cut_rows);
  const bool is_other = words.size() > 1 && meant == words[1];
  if (is_other && cut.style != TensorStyle::sequence_parallel) return TensorStyle::replicated;
  require(is_other || meant == words[0] || std::ranges::count(cut.also, meant) > 0,
          "the tensor-parallel plan says '", word, "' for '", module, "'; want ", words[0],
          words.size() > 1 ? " or " : "", words.size() > 1 ? words[1] : "");
  return cut.style;
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
  const ModuleStyle* before = nullptr;  // the entry of a block on the same norm
  for (std::int64_t block = 0; block < config.num_layers(); ++block) {
    const BlockKind kind = config.blocks[static_cast<std::size_t>(block)];
    const std::string_view module = kind->entry(config.block(block));
    const ModuleStyle* const entry = module.empty() ? nullptr : &*styles.find(mixer_name(block, module));
    if (before && entry)
      check_alike(*before, *entry, config.names,
                  ": their blocks work on the same norm, so that what they send is sent once");
    if (entry) before = entry;
    if (!config.shares_norm_with_next(block_name(block))) before = nullptr;
  }
}

/// A block that reads keys and values of another has heads cut as that one has.
void check_shared_keys(const std::map<TensorName, TensorStyle>& styles, const ModelConfig& config) {
  for (std::int64_t block = 0; block < config.num_layers(); ++block)
    for (const SideRows& rows : config.side_rows(block))
      if (rows.all_rows())
        check_alike(*styles.find(rows.cut_with.module()), *styles.find(mixer_name(block, "q_proj")),
                    config.names, ": the latter reads keys and values of the former's block");
}

/// A module that patterns can name.
struct NamedModule {
  std::string text;
  const CutRule* cut;
  TensorName decides;  ///< about its style; itself but for modules that follow another
};

/// The modules that have a tensor, in the order of these. The head of a tied model is one of them.
std::vector<std::pair<TensorName, NamedModule>> named_modules(const ModelSetup& setup) {
  ModelSetup with_head = setup;
  with_head.config.tie_word_embeddings = false;
  std::vector<std::pair<TensorName, NamedModule>> modules;
  std::set<TensorName> seen;
  for (const TensorSpec& spec : tensor_specs(with_head)) {
    if (spec.factor != LoraFactor::none) continue;
    TensorName module = spec.id.module();
    if (module.member.ends_with(".bias")) module = module.around();
    if (!seen.insert(module).second) continue;
    const bool tied = setup.config.tie_word_embeddings && module == head_name();
    std::string text = setup.config.text(module);
    modules.push_back(
        {std::move(module), {std::move(text), spec.cut, tied ? embeddings_name() : spec.module}});
  }
  return modules;
}

/// A stack of experts as a whole.
bool is_stack(const ModelSetup& setup, std::string_view pattern) {
  return std::ranges::any_of(tensor_specs(setup), [&](const TensorSpec& spec) {
    return spec.experts && pattern_matches(pattern, setup.config.text(spec.module.around()));
  });
}

std::string known_words() {
  std::string text;
  for (const TensorPlanWord& word : tensor_plan_words())
    if (word.refusal.empty()) text += cat(text.empty() ? "" : ", ", word.word);
  return text;
}

}  // namespace

TensorParallelPlan::TensorParallelPlan(const ModelSetup& setup, bool sequence_parallel,
                                       const std::vector<TensorParallelRule>& rules)
    : sequence_parallel_(sequence_parallel), names_(setup.config.names) {
  constexpr const char* plan = "the tensor-parallel plan: ";
  std::vector<TensorParallelRule> all;  // as written
  std::vector<std::string> patterns;    // of these, as names spell modules
  const auto note = [&](const TensorParallelRule& rule, std::string_view text) {
    std::string line = cat(plan, quote(rule.style), " for ", quote(rule.pattern), text);
    if (std::ranges::find(notes_, line) == notes_.end()) notes_.push_back(std::move(line));
  };
  constexpr const char* grid_decides =
      ": distributed.expert_tp_size and ep_size say over how many ranks experts are cut";
  for (const TensorParallelRule& rule : rules) {
    if (is_skipped_in_tensor_plans(rule.style)) {
      note(rule, " is skipped, the grid decides here");
      continue;
    }
    const TensorPlanWord* word = find_tensor_plan_word(rule.style);
    require(word != nullptr, "Unknown parallel style ", quote(rule.style), " for ", quote(rule.pattern),
            "; want one of ", known_words());
    require(word->refusal.empty(), plan, quote(rule.style), " for ", quote(rule.pattern), ": ", word->refusal,
            "; the nearest word that is served is ", word->nearest);
    std::string pattern = names_.table().canonical(rule.pattern);
    if (word->of_experts) {
      require(is_stack(setup, pattern), plan, quote(rule.pattern), " is ", quote(rule.style),
              " and matches no stack of experts of this model");
      note(rule, grid_decides);
      continue;
    }
    all.push_back(rule);
    patterns.push_back(std::move(pattern));
  }
  const std::size_t own = all.size();
  std::ranges::move(usual_rules(setup), std::back_inserter(all));
  for (std::size_t i = own; i < all.size(); ++i) patterns.push_back(all[i].pattern);

  const auto modules = named_modules(setup);
  std::set<std::size_t> matched, used;
  std::set<std::string> known;
  std::string known_text;
  std::vector<std::pair<ModuleStyle, TensorName>> followers;  // with a rule
  for (const auto& [name, module] : modules) {
    if (std::string pattern = names_.pattern(name); known.insert(pattern).second)
      known_text += (known_text.empty() ? "" : ", ") + pattern;
    const bool follows = module.decides != name;
    std::size_t counting = all.size();
    for (std::size_t i = follows ? own : all.size(); i-- > 0;)
      if (pattern_matches(patterns[i], module.text)) {
        matched.insert(i);
        counting = i;
      }
    if (follows && counting == all.size()) continue;
    used.insert(counting);
    const TensorParallelRule& rule = all.at(counting);
    const TensorStyle style = style_as(*module.cut, rule.style, module.text, sequence_parallel);
    const bool of_experts = style == TensorStyle::expert_colwise || style == TensorStyle::expert_rowwise;
    if (of_experts && rule.style != name_of(style)) note(rule, grid_decides);
    if (counting < own && !sequence_parallel && !module.cut->always_own_rows &&
        rule.style == name_of(TensorStyle::sequence_parallel))
      note(rule, " cuts rows with distributed.sequence_parallel: true, not without it");
    if (follows)
      followers.push_back({{name, style}, module.decides});
    else
      styles_.emplace(name, style);
  }
  for (std::size_t i = 0; i < own; ++i)
    require(matched.contains(i), plan, quote(all[i].pattern),
            " matches no module of this model; the modules are ", known_text);
  for (const auto& [follower, decides] : followers)
    check_alike(*styles_.find(decides), follower, names_, ": the latter follows the former");
  check_whole_mixers(styles_, names_);
  check_shared_norms(styles_, setup.config);
  check_shared_keys(styles_, setup.config);
  for (const std::size_t i : used) rules_.push_back(all[i]);
}

TensorStyle TensorParallelPlan::style(const TensorName& module) const {
  const auto found = styles_.find(module);
  expect(found != styles_.end(), "the tensor-parallel plan has no module '", names_.text(module), "'");
  return found->second;
}

bool TensorParallelPlan::cuts_any(std::string_view module_of_block,
                                  const std::function<bool(const TensorName&)>& counts) const {
  return std::ranges::any_of(styles_, [&](const auto& entry) {
    return entry.first.in_mixer() && entry.first.member == module_of_block &&
           entry.second != TensorStyle::replicated && (!counts || counts(entry.first));
  });
}

}  // namespace nemocube
