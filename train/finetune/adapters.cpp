#include "train/finetune/adapters.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "core/quote.h"
#include "train/finetune/module_pattern.h"
#include "train/finetune/near_names.h"

namespace nemocube {
namespace {

/// What patterns look at.
struct Candidate {
  TensorName id;                    // of a linear layer, or of a module of routed experts
  std::string name;                 // the text of `id`
  bool experts = false;             // routed ones
  std::vector<TensorName> modules;  // to adapt: the layer, or the stacks
  std::int64_t parameters_per_rank = 0;
};

std::int64_t parameters_per_rank(const TensorSpec& weight) {
  const int last = weight.shape.ndim() - 1;
  return (weight.shape[last] + weight.shape[last - 1]) * (weight.experts ? weight.shape[0] : 1);
}

std::vector<Candidate> candidates_of(const ModelSetup& setup) {
  std::vector<Candidate> all;
  for (const TensorSpec& spec : tensor_specs(setup)) {
    if (!spec.linear) continue;
    const TensorName module = spec.id.module(), id = spec.experts ? module.around() : module;
    if (all.empty() || all.back().id != id) all.push_back({id, setup.config.text(id), spec.experts, {}, 0});
    all.back().modules.push_back(module);
    all.back().parameters_per_rank += parameters_per_rank(spec);
  }
  return all;
}

std::vector<std::string> names_of(const std::vector<Candidate>& candidates) {
  std::vector<std::string> names;
  for (const Candidate& c : candidates) names.push_back(c.name);
  return names;
}

/// The same pattern for a reader who takes dots for dots: "*" stands for anything, and a dot before it stays.
std::string literal_dots(std::string_view text) {
  std::string strict;
  for (const char c : text)
    strict += c == '*' ? std::string(".*") : c == '.' ? std::string("[.]") : std::string(1, c);
  return strict;
}

class Chooser {
 public:
  Chooser(const ModelSetup& setup, const PeftSection& peft)
      : setup_(setup), peft_(peft), candidates_(candidates_of(setup)) {}

  ChosenAdapters choose() {
    std::vector<std::string> targets = peft_.target_modules;
    if (targets.empty() && peft_.exclude_modules.empty() && !peft_.match_all_linear) {
      targets = {"*_proj"};
      chosen_.warnings.push_back(
          "peft: none of target_modules, exclude_modules and match_all_linear is given; target_modules is "
          "\"*_proj\", which fits neither routed experts nor lm_head");
    }
    if (peft_.match_all_linear) {
      adapt_all([](const Candidate&) { return true; }, "peft.match_all_linear fits");
    } else if (!targets.empty()) {
      for (const std::string& text : targets) adapt_fitting(text);
    } else {
      adapt_others();
    }
    return std::move(chosen_);
  }

 private:
  const ModelNames& names() const { return setup_.config.names; }

  std::vector<const Candidate*> all_fitting(const char* key, const std::string& text) const {
    const ModulePattern pattern(key, text);
    std::vector<const Candidate*> found;
    for (const Candidate& c : candidates_)
      if (pattern.fits(c.name, names())) found.push_back(&c);
    return found;
  }

  /// Whether the pattern names a part that models of texts and images have beside the language model.
  static bool is_of_other_parts(std::string_view text) {
    constexpr std::array<std::string_view, 4> words{"vision", "visual", "projector", "audio"};
    return std::ranges::any_of(words, [&](std::string_view word) { return text.find(word) != text.npos; });
  }

  std::vector<const Candidate*> fitting(const char* key, const std::string& text) {
    std::vector<const Candidate*> found = all_fitting(key, text);
    require(!found.empty(), key, ": ", quote(text),
            " fits no linear layer and no module of routed experts of this model; ", hint(key, text),
            "there are: ", near_names(names_of(candidates_), text), mtp_hint(setup_, text));
    warn_of_dots(key, text, found);
    return found;
  }

  /// Where the pattern would fit without its first words: "*.lm_head".
  std::string hint(const char* key, const std::string& text) const {
    const std::string ending = "*." + text, rest = text.substr(text.find('.') + 1);
    const auto fits_some = [&](const std::string& other) {
      const ModulePattern pattern(key, other);
      return std::ranges::any_of(candidates_,
                                 [&](const Candidate& c) { return pattern.fits(c.name, names()); });
    };
    if (fits_some(ending)) return cat("a pattern has to fit the whole name, as ", quote(ending), " does; ");
    const bool named = std::ranges::any_of(candidates_, [&](const Candidate& c) { return c.name == rest; });
    return named ? cat("want ", quote(rest), ", which has no dot before it; ") : "";
  }

  void warn_of_dots(const char* key, const std::string& text, const std::vector<const Candidate*>& found) {
    if (text.find('.') == text.npos || text.find_first_of("()[]{}|+?^$\\") != text.npos) return;
    const ModulePattern strict(key, literal_dots(text));
    for (const Candidate* c : found) {
      if (strict.fits(c->name, names())) continue;
      chosen_.warnings.push_back(cat(key, ": ", quote(text), " also fits ", c->name,
                                     ": the dot before a star belongs to the star, and other dots stand for "
                                     "any character"));
      return;
    }
  }

  void adapt_fitting(const std::string& text) {
    std::vector<const Candidate*> found = fitting("peft.target_modules", text);
    adapt(found, cat("peft.target_modules: ", quote(text), " fits"));
  }

  void adapt_others() {
    std::vector<const Candidate*> excluded;
    for (const std::string& text : peft_.exclude_modules) {
      if (is_of_other_parts(text) && all_fitting("peft.exclude_modules", text).empty()) {
        chosen_.warnings.push_back(cat("peft.exclude_modules: ", quote(text),
                                       " fits nothing: the language model alone is trained here"));
        continue;
      }
      const auto fits = fitting("peft.exclude_modules", text);
      excluded.insert(excluded.end(), fits.begin(), fits.end());
    }
    adapt_all([&](const Candidate& c) { return std::ranges::find(excluded, &c) == excluded.end(); },
              "peft.exclude_modules leaves");
    if (chosen_.adapters.modules.contains(head_name()))
      chosen_.warnings.push_back(
          "peft.exclude_modules adapts every other linear layer, lm_head too, which servers of adapters "
          "often "
          "refuse; \"lm_head\" in exclude_modules leaves it out");
  }

  void adapt_all(const auto& wanted, const std::string& what) {
    std::vector<const Candidate*> found;
    for (const Candidate& c : candidates_)
      if (!c.experts && wanted(c)) found.push_back(&c);
    require(!found.empty(),
            "peft.exclude_modules: the patterns fit every linear layer, and nothing is left to adapt");
    adapt(found, what);
  }

  void adapt(const std::vector<const Candidate*>& found, const std::string& what) {
    std::int64_t modules = 0, parameters = 0;
    for (const Candidate* c : found) {
      const LoraModule adapter{c->experts ? expert_rank(c->id) : peft_.dim, peft_.alpha, peft_.use_rslora};
      for (const TensorName& module : c->modules) chosen_.adapters.modules.emplace(module, adapter);
      ++modules;
      parameters += adapter.rank * c->parameters_per_rank;
    }
    chosen_.lines.push_back(cat(what, " ", modules, modules == 1 ? " module" : " modules", ": adapters with ",
                                parameters, " parameters"));
  }

  std::int64_t expert_rank(const TensorName& module) {
    if (!peft_.moe_rank_scaling) return peft_.dim;
    const ModelConfig& config = setup_.config;
    const std::int64_t experts = config.of_tensor(module).moe.num_experts_per_tok, rank = peft_.dim / experts;
    const auto block = module.block_of_model();
    const std::string where = of_block(block && config.own_configs.contains(*block) ? block : std::nullopt);
    require(rank >= 1, "peft.moe_rank_scaling: dim is ", peft_.dim, " and num_experts_per_tok", where, " is ",
            experts, "; want a dim of at least that, so that experts have a rank of 1 or more");
    if (peft_.dim % experts != 0 && warned_of_.insert(experts).second) {
      chosen_.warnings.push_back(cat("peft.moe_rank_scaling: dim ", peft_.dim, " / num_experts_per_tok ",
                                     experts, where, " is no whole number; experts have the rank ", rank));
    }
    return rank;
  }

  const ModelSetup& setup_;
  const PeftSection& peft_;
  std::vector<Candidate> candidates_;
  ChosenAdapters chosen_;
  std::set<std::int64_t> warned_of_;  // numbers of experts that do not divide the rank
};

// PEFT from 0.20 on raises ValueError for modules of this name in models of the type nemotron_h, because the
// fused kernel of Mamba takes their weights past an adapter. Source: _check_lora_target_modules_mamba in
// peft/tuners/tuners_utils.py; 0.16 to 0.19 do so for other types only.
constexpr std::string_view refused_by_peft = "out_proj";

bool loads_in_peft(const TensorName& module) {
  return module.member.substr(module.member.rfind('.') + 1) != refused_by_peft;
}

/// The pattern that names modules of these last words as AutoModel's recipes do.
std::string pattern_of(const std::string& module, int words = 1) {
  std::size_t dot = module.rfind('.');
  while (--words > 0 && dot != module.npos && dot > 0) dot = module.rfind('.', dot - 1);
  return dot == module.npos ? module : cat("*", module.substr(dot));
}

std::string listed(const std::vector<std::string>& patterns) {
  std::string text;
  for (const std::string& pattern : patterns) text += cat(text.empty() ? "'" : ", '", pattern, "'");
  return cat("[", text, "]");
}

/// The line of a recipe that adapts the same modules but those that PEFT refuses; empty where no simple line
/// does.
std::string line_for_peft(const ModelSetup& setup, const PeftSection& peft, const LoraAdapters& adapters) {
  PeftSection other = peft;
  if (peft.match_all_linear || !peft.exclude_modules.empty()) {
    other.match_all_linear = false;
    other.exclude_modules.push_back(cat("*.", refused_by_peft));
  } else {
    std::set<std::string> patterns;
    for (const Candidate& c : candidates_of(setup))
      if (loads_in_peft(c.id) && adapters.modules.contains(c.modules.front()))
        patterns.insert(c.experts ? pattern_of(c.name, 2) : pattern_of(c.name));
    other.target_modules.assign(patterns.begin(), patterns.end());
    if (patterns.empty()) return "";
  }
  auto wanted = adapters.modules;
  std::erase_if(wanted, [](const auto& module) { return !loads_in_peft(module.first); });
  try {
    if (Chooser(setup, other).choose().adapters.modules != wanted) return "";
  } catch (const Error&) {
    return "";
  }
  return other.exclude_modules.empty() ? cat("target_modules: ", listed(other.target_modules))
                                       : cat("exclude_modules: ", listed(other.exclude_modules));
}

}  // namespace

std::string warning_of_peft(const ModelSetup& setup, const PeftSection& peft, const LoraAdapters& adapters) {
  const auto refused = std::ranges::count_if(adapters.modules,
                                             [](const auto& module) { return !loads_in_peft(module.first); });
  if (refused == 0) return "";
  const std::string line = peft.adapter_path ? "" : line_for_peft(setup, peft, adapters);
  return cat("peft: ", refused, refused == 1 ? " module" : " modules", " of the name ", refused_by_peft,
             refused == 1 ? " has an adapter" : " have adapters",
             ", which Hugging Face PEFT from 0.20 on refuses to load for this model; nemocube and AutoModel "
             "read them, and nemocube "
             "convert --merge writes them into the weights. ",
             line.empty() ? cat("Adapters for PEFT want other modules")
                          : cat("For PEFT the section peft of the recipe wants the line  ", line,
                                peft.match_all_linear ? "  in the place of match_all_linear" : ""));
}

ChosenAdapters choose_adapters(const ModelSetup& setup, const PeftSection& peft, std::uint64_t dropout_seed) {
  ChosenAdapters chosen = Chooser(setup, peft).choose();
  if (std::string warning = warning_of_peft(setup, peft, chosen.adapters); !warning.empty())
    chosen.warnings.push_back(std::move(warning));
  apply_settings(chosen.adapters, peft, dropout_seed);
  return chosen;
}

void apply_settings(LoraAdapters& adapters, const PeftSection& peft, std::uint64_t dropout_seed) {
  adapters.f32 = peft.lora_dtype == DType::f32;
  adapters.initialisation = peft.initialisation;
  adapters.dropout = peft.dropout;
  adapters.dropout_position = peft.dropout_position;
  adapters.dropout_seed = dropout_seed;
}

bool trains_adapters(const ModelSetup& setup) {
  return std::ranges::any_of(tensor_specs(setup), [](const TensorSpec& spec) {
    return spec.factor != LoraFactor::none && !spec.frozen;
  });
}

std::set<TensorName> base_parameters(const ModelSetup& setup) {
  std::set<TensorName> names;
  for (const TensorSpec& spec : tensor_specs(setup))
    if (!spec.buffer && spec.factor == LoraFactor::none) names.insert(spec.id);
  return names;
}

}  // namespace nemocube
