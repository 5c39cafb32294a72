#include "train/recipe/environment.h"

#include <stdlib.h>

#include <algorithm>
#include <cctype>

#include "core/environment.h"
#include "core/error.h"
#include "core/quote.h"
#include "train/recipe/names.h"
#include "train/recipe/words.h"

namespace nemocube {
namespace recipe {
std::string variable_of(std::string_view key) {
  std::string name;
  for (const unsigned char c : key) name += static_cast<char>(std::toupper(c));
  return name;
}

bool is_variable_name(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && letter(name[0]) &&
         std::ranges::all_of(name, [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

std::optional<bool> parse_switch(std::string_view text) {
  const std::string word = lower_case(text);
  for (const char* yes : {"1", "true", "yes", "on"})
    if (word == yes) return true;
  for (const char* no : {"", "0", "false", "no", "off"})
    if (word == no) return false;
  return std::nullopt;
}

}  // namespace recipe

namespace {

using recipe::name_of_choice;

/// The value of a variable, and how messages call the place that it comes from.
struct Found {
  std::string text, source;
};

/// The variables of a run: those of the process, and those that the recipe sets.
class Variables {
 public:
  Variables(const Recipe& recipe, const GetVariable& process, Environment& out) : process_(process) {
    const std::string section = cat(recipe.file, ": dist_env.");
    for (const auto& variable : recipe::named_variables)
      if (const auto& value = recipe.dist_env.*variable.member)
        set(recipe::variable_of(variable.key), {value->text, section + variable.key});
    for (const auto& [name, value] : recipe.dist_env.runtime_env)
      set(name, {value.text, cat(section, "runtime_env.", name)});
    for (const auto& [name, wish] : of_recipe_) {
      const char* there = process(name.c_str());
      if (there == nullptr)
        out.to_set.emplace_back(name, wish.text);
      else if (const auto secret = recipe.interpolated.find(wish.text);
               wish.text != there && secret != recipe.interpolated.end())
        out.notes.push_back(cat("the environment variable ", name, " stays as it is; ", wish.source, ", ",
                                quote(secret->second), ", has another value"));
      else if (wish.text != there)
        out.notes.push_back(cat("the environment variable ", name, " is ", quote(there), " and stays so; ",
                                wish.source, " is ", quote(wish.text)));
    }
  }

  std::optional<Found> find(KnownVariable variable) const {
    const char* name = variable.name();
    if (const char* text = process_(name)) return Found{text, cat("the environment variable ", name)};
    for (const auto& [other, value] : of_recipe_)
      if (other == name) return value;
    return std::nullopt;
  }
  std::optional<bool> find_switch(KnownVariable name) const {
    const auto found = find(name);
    if (!found) return std::nullopt;
    const auto value = recipe::parse_switch(found->text);
    require(value.has_value(), found->source, " is ", quote(found->text), "; want ", recipe::switch_words);
    return value;
  }
  bool is_on(KnownVariable name) const { return find_switch(name).value_or(false); }
  /// Where the value of a variable comes from, for messages; empty where there is none.
  std::string source_of(KnownVariable name) const {
    const auto found = find(name);
    return found ? found->source : "";
  }

 private:
  void set(const std::string& name, Found value) {
    const auto at = std::ranges::find(of_recipe_, name, &std::pair<std::string, Found>::first);
    if (at == of_recipe_.end())
      of_recipe_.emplace_back(name, std::move(value));
    else
      at->second = std::move(value);
  }

  const GetVariable& process_;
  std::vector<std::pair<std::string, Found>> of_recipe_;
};

constexpr KnownVariable use_deepep = "NEMOTRONH_EP_USE_DEEPEP_DISPATCH",
                        require_deepep = "NEMOTRONH_EP_REQUIRE_DEEPEP",
                        parallel_ce = "NEMOTRONH_TP_PARALLEL_CE",
                        parallel_ce_impl = "NEMOTRONH_TP_PARALLEL_CE_IMPL",
                        pp_block_weights = "NEMOAUTOMODEL_PP_BLOCK_WEIGHTS";

DispatcherKind dispatcher_of(const Recipe& recipe, const Variables& variables,
                             std::vector<std::string>& notes) {
  const auto use = variables.find_switch(use_deepep);
  const bool required = variables.is_on(require_deepep);
  if (required && use == false)
    fail(variables.source_of(require_deepep), " is on, but ", variables.source_of(use_deepep),
         " is off; want both on, or the first one off");
  const auto& s = recipe.distributed;
  if (s.ep_size == 1 && s.expert_tp_size == 1) return DispatcherKind::local;

  const auto otherwise = recipe.model ? recipe.model->backend.dispatcher.value_or(DispatcherKind::alltoall)
                                      : DispatcherKind::alltoall;
  const auto kind = !use ? otherwise : *use ? DispatcherKind::alltoall : DispatcherKind::allgather;
  const std::string source =
      use ? variables.source_of(use_deepep) : recipe.file + ": model.backend.dispatcher";
  if (kind != otherwise)
    notes.push_back(
        cat(source, " makes the dispatcher ", name_of_choice(kind), ", not ", name_of_choice(otherwise)));
  require(kind != DispatcherKind::local, source,
          " is local, which moves no tokens, but ep_size * expert_tp_size is ", s.ep_size, " * ",
          s.expert_tp_size, "; want alltoall or allgather");
  if (required && kind != DispatcherKind::alltoall)
    fail(variables.source_of(require_deepep), " is on, but ", source, " is ", name_of_choice(kind),
         "; want alltoall, which is deepep here");
  return kind;
}

void note_what_always_holds(const Variables& variables, std::vector<std::string>& notes) {
  const auto note = [&](KnownVariable name, const char* fact) {
    if (!variables.find_switch(name).value_or(true))
      notes.push_back(cat(variables.source_of(name), " is off, but ", fact));
  };
  note("NEMOTRONH_EP_PHYSICAL_PARTITION", "a rank of this build always holds its own experts alone");
  note("NEMOTRONH_EP_SYNC_INACTIVE_EXPERTS",
       "ranks of this build take part in every exchange, with or without tokens");
  note("NEMOAUTOMODEL_PP_SKIP_OUTPUT_MERGE",
       "the last stage of this build never puts the logits of its microbatches together");
}

TpCrossEntropy implementation_named(const Found& found) {
  const auto& names = recipe::names_of<TpCrossEntropy>;
  const std::string word = recipe::lower_case(found.text);
  const auto* known = std::ranges::find_if(names, [&](const auto& n) { return word == n.name; });
  require(known != names.end(), found.source, " is ", quote(found.text), "; want native, te, auto or off");
  return known->value;
}

TpCrossEntropy tp_cross_entropy_of(const Recipe& recipe, const Variables& variables,
                                   std::vector<std::string>& notes) {
  const TpCrossEntropy asked = recipe.distributed.tp_cross_entropy;
  const auto implementation = variables.find(parallel_ce_impl);
  const auto parallel = variables.find_switch(parallel_ce);
  TpCrossEntropy kind = implementation ? implementation_named(*implementation) : asked;
  KnownVariable source = parallel_ce_impl;
  if (parallel && (!*parallel || (!implementation && asked == TpCrossEntropy::off))) {
    kind = *parallel ? TpCrossEntropy::automatic : TpCrossEntropy::off;
    source = parallel_ce;
  }
  if (kind != asked)
    notes.push_back(cat(variables.source_of(source), " makes the tensor-parallel cross-entropy ",
                        name_of_choice(kind), ", not ", name_of_choice(asked)));
  return kind;
}

std::optional<BlockWeights> block_weights_of(const Recipe& recipe, const Variables& variables,
                                             std::vector<std::string>& notes) {
  const auto& pipeline = recipe.distributed.pipeline;
  std::optional<BlockWeights> asked;
  if (pipeline) asked = pipeline->block_weights;
  const auto found = variables.find(pp_block_weights);
  if (!found || found->text.empty()) return asked;
  try {
    const auto weights = parse_block_weights(found->text);
    if (asked && *asked != weights)
      notes.push_back(cat(found->source, " is ahead of distributed.pipeline.block_weights, which differs"));
    return weights;
  } catch (const Error& error) {
    fail(found->source, ": ", error.what());
  }
}

}  // namespace

Environment resolve_environment(const Recipe& recipe, const GetVariable& get_variable) {
  Environment out;
  const Variables variables(recipe, get_variable, out);
  ParallelSettings& s = out.settings;
  s.dispatcher = dispatcher_of(recipe, variables, out.notes);
  note_what_always_holds(variables, out.notes);
  s.expert_reshard_after_forward = variables.find_switch("NEMOTRONH_EP_EXPERT_RESHARD_AFTER_FORWARD");
  if (!s.expert_reshard_after_forward)
    s.expert_reshard_after_forward = recipe.distributed.moe.reshard_after_forward;
  s.tp_cross_entropy = tp_cross_entropy_of(recipe, variables, out.notes);
  s.block_weights = block_weights_of(recipe, variables, out.notes);
  s.refuse_underfill = variables.is_on("NEMOAUTOMODEL_PP_STRICT_TOTAL_UNDERFILL") &&
                       !variables.is_on("NEMOAUTOMODEL_PP_ALLOW_UNDERFILL");
  const std::optional<CommBackend> backend = recipe.dist_env.backend;
  if (backend == CommBackend::gloo ||
      (backend && backend != CommBackend::mpi && recipe.device != DeviceChoice::cuda))
    out.notes.push_back(cat(recipe.file, ": dist_env.backend is ", name_of_choice(*backend), "; ",
                            backend == CommBackend::gloo ? "ranks" : "ranks that compute on CPUs",
                            " exchange data over MPI"));
  return out;
}

Environment resolve_environment(const Recipe& recipe) {
  return resolve_environment(recipe, [](const char* name) { return variable_named_in_recipe(name); });
}

void set_variables(const Environment& environment) {
  for (const auto& [name, value] : environment.to_set) ::setenv(name.c_str(), value.c_str(), 1);
}

}  // namespace nemocube
