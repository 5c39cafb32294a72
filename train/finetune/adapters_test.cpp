#include "train/finetune/adapters.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "model/test_models.h"
#include "tests/support/message_of.h"
#include "train/step/train_step.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Names = std::set<std::string>;

PeftSection targets(std::vector<std::string> patterns) {
  PeftSection peft;
  peft.target_modules = std::move(patterns);
  return peft;
}
PeftSection all_but(std::vector<std::string> patterns) {
  PeftSection peft;
  peft.exclude_modules = std::move(patterns);
  return peft;
}

const ModelConfig& config() {
  static const ModelConfig of_all_kinds = tiny_config("M*-E");
  return of_all_kinds;
}

ChosenAdapters choose(const PeftSection& peft, const ModelSetup& of = config()) {
  return choose_adapters(of, peft, 7);
}

/// The modules that are adapted, without "backbone.layers." and "mixer.".
Names modules_of(const ChosenAdapters& chosen) {
  Names names;
  for (const auto& [module, adapter] : chosen.adapters.modules) {
    std::string name = ModelNames().text(module);
    for (const std::string part : {"backbone.layers.", "mixer."})
      if (const auto at = name.find(part); at != name.npos) name.erase(at, part.size());
    names.insert(name);
  }
  return names;
}

const Names projections{"0.in_proj",
                        "0.out_proj",
                        "1.q_proj",
                        "1.k_proj",
                        "1.v_proj",
                        "1.o_proj",
                        "2.up_proj",
                        "2.down_proj",
                        "3.shared_experts.up_proj",
                        "3.shared_experts.down_proj"};
Names with(Names names, const Names& more) {
  names.insert(more.begin(), more.end());
  return names;
}

std::string fault(const PeftSection& peft, const ModelSetup& of = config()) {
  return message_of([&] { choose(peft, of); });
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

/// The parameters that the model then has in adapters.
std::int64_t parameters_of(ModelSetup of, const ChosenAdapters& chosen) {
  of.choices.lora = chosen.adapters;
  std::int64_t count = 0;
  for (const TensorSpec& spec : tensor_specs(of))
    if (spec.factor != LoraFactor::none) count += spec.shape.numel();
  return count;
}

}  // namespace

TEST_CASE("peft: without a choice of modules every projection is adapted, and a warning says so") {
  const ChosenAdapters chosen = choose({});
  CHECK(modules_of(chosen) == projections);
  REQUIRE(chosen.warnings.size() == 2);
  CHECK(chosen.warnings[0] ==
        "peft: none of target_modules, exclude_modules and match_all_linear is given; target_modules is "
        "\"*_proj\", "
        "which fits neither routed experts nor lm_head");
  REQUIRE(chosen.lines.size() == 1);
  CHECK(chosen.lines[0] == cat("peft.target_modules: '*_proj' fits 10 modules: adapters with ",
                               parameters_of(config(), chosen), " parameters"));
  CHECK(has(chosen.warnings[1], "which Hugging Face PEFT from 0.20 on refuses to load"));
  CHECK(modules_of(choose(targets({"*_proj"}))) == projections);
  // Latent projections are projections, too.
  CHECK(modules_of(choose({}, tiny_config_with_all_tensors())).contains("3.fc1_latent_proj"));
}

TEST_CASE("peft: a warning has the line that adapts the same modules but those that PEFT refuses") {
  const std::string way = "For PEFT the section peft of the recipe wants the line  ";
  const auto warning = [&](const PeftSection& peft, const ModelSetup& of = config()) {
    const auto warnings = choose(peft, of).warnings;
    const auto found =
        std::ranges::find_if(warnings, [](const std::string& w) { return has(w, "Hugging Face PEFT"); });
    return found == warnings.end() ? "" : found->substr(found->find(". ") + 2);
  };
  const std::string all =
      "['*.down_proj', '*.in_proj', '*.k_proj', '*.o_proj', '*.q_proj', '*.up_proj', '*.v_proj']";
  CHECK(warning({}) == cat(way, "target_modules: ", all));
  CHECK(warning(targets({"*_proj", "lm_head", "*.experts"})) ==
        cat(way,
            "target_modules: ['*.down_proj', '*.in_proj', '*.k_proj', '*.mixer.experts', '*.o_proj', "
            "'*.q_proj', "
            "'*.up_proj', '*.v_proj', 'lm_head']"));
  CHECK(warning(all_but({"lm_head"})) == cat(way, "exclude_modules: ['lm_head', '*.out_proj']"));
  PeftSection every;
  every.match_all_linear = true;
  CHECK(warning(every) == cat(way, "exclude_modules: ['*.out_proj']  in the place of match_all_linear"));
  CHECK(warning(targets({"*.layers.0.*"}), tiny_config("MM")) == "Adapters for PEFT want other modules");
  CHECK(warning(targets({"*.out_proj"})) == "Adapters for PEFT want other modules");
  CHECK(warning(all_but({"*.out_proj"})).empty());
  CHECK(warning(targets({"*.in_proj", "*.q_proj"})).empty());
  // The lines do what they say.
  Names want = projections;
  want.erase("0.out_proj");
  CHECK(modules_of(choose(targets({"*.down_proj", "*.in_proj", "*.k_proj", "*.o_proj", "*.q_proj",
                                   "*.up_proj", "*.v_proj"}))) == want);
}

TEST_CASE("peft: exclude_modules adapts all other linear layers, with a warning of lm_head") {
  const ChosenAdapters chosen = choose(all_but({"*.out_proj"}));
  Names want = with(projections, {"lm_head"});
  want.erase("0.out_proj");
  CHECK(modules_of(chosen) == want);
  REQUIRE(chosen.warnings.size() == 1);
  CHECK(chosen.warnings[0] ==
        "peft.exclude_modules adapts every other linear layer, lm_head too, which servers of adapters often "
        "refuse; "
        "\"lm_head\" in exclude_modules leaves it out");
  CHECK(chosen.lines == std::vector<std::string>{cat("peft.exclude_modules leaves 10 modules: adapters with ",
                                                     parameters_of(config(), chosen), " parameters")});
  const ChosenAdapters quiet = choose(all_but({"*.out_proj", "lm_head"}));
  want.erase("lm_head");
  CHECK(modules_of(quiet) == want);
  CHECK(quiet.warnings.empty());
  CHECK(fault(all_but({"*_proj", "lm_head"})) ==
        "peft.exclude_modules: the patterns fit every linear layer, and nothing is left to adapt");
}

TEST_CASE("peft: match_all_linear adapts every linear layer and no routed experts") {
  PeftSection peft;
  peft.match_all_linear = true;
  const ChosenAdapters chosen = choose(peft);
  CHECK(modules_of(chosen) == with(projections, {"lm_head"}));
  REQUIRE(chosen.warnings.size() == 1);
  CHECK(has(chosen.warnings[0], "in the place of match_all_linear"));
  CHECK(chosen.lines == std::vector<std::string>{cat("peft.match_all_linear fits 11 modules: adapters with ",
                                                     parameters_of(config(), chosen), " parameters")});
}

TEST_CASE("peft: routed experts are one module, of two stacks") {
  const Names stacks{"3.experts.up_proj", "3.experts.down_proj"};
  const ChosenAdapters chosen = choose(targets({"*.mixer.experts"}));
  CHECK(modules_of(chosen) == stacks);
  CHECK(chosen.warnings.empty());
  CHECK(chosen.lines ==
        std::vector<std::string>{cat("peft.target_modules: '*.mixer.experts' fits 1 module: adapters with ",
                                     parameters_of(config(), chosen), " parameters")});
  CHECK(modules_of(choose(targets({"*.mixer.experts*"}))) == stacks);
  CHECK(modules_of(choose(targets({"model.layers.3.mixer.experts"}))) == stacks);
  CHECK(modules_of(choose(targets({"lm_head", "*.q_proj", "*.mixer.experts"}))) ==
        with(stacks, {"lm_head", "1.q_proj"}));
  // A stack alone is no module.
  CHECK(has(fault(targets({"*.mixer.experts.up_proj"})),
            "fits no linear layer and no module of routed experts"));
}

TEST_CASE("peft: what a pattern also fits, because dots are no dots, is said") {
  const ModelConfig twelve = tiny_config("************");
  const ChosenAdapters chosen = choose(targets({"*.layers.1.*.q_proj"}), twelve);
  CHECK(modules_of(chosen) == Names{"1.q_proj", "10.q_proj", "11.q_proj"});
  REQUIRE(chosen.warnings.size() == 1);
  CHECK(chosen.warnings[0] ==
        "peft.target_modules: '*.layers.1.*.q_proj' also fits backbone.layers.10.mixer.q_proj: the dot "
        "before a star "
        "belongs to the star, and other dots stand for any character");
  CHECK(choose(targets({"*.layers.1.*.q_proj"}), tiny_config("**")).warnings.empty());
  const ChosenAdapters experts = choose(targets({"*.experts*"}));
  CHECK(modules_of(experts) == Names{"3.experts.up_proj", "3.experts.down_proj", "3.shared_experts.up_proj",
                                     "3.shared_experts.down_proj"});
  REQUIRE(experts.warnings.size() == 1);
  CHECK(has(experts.warnings[0], "also fits backbone.layers.3.mixer.shared_experts.up_proj"));
  // Who writes a regular expression knows what a dot is.
  CHECK(choose(targets({"model.layers.(0|1).mixer.[iq].*_proj"})).warnings.empty());
}

TEST_CASE("peft: a pattern that fits nothing is refused, with what may be meant") {
  CHECK(fault(targets({"*.q_porj"})) ==
        "peft.target_modules: '*.q_porj' fits no linear layer and no module of routed experts of this model; "
        "there are: "
        "backbone.layers.0.mixer.in_proj, backbone.layers.0.mixer.out_proj, backbone.layers.1.mixer.q_proj");
  CHECK(has(fault(targets({"*.lm_head"})),
            "of this model; want 'lm_head', which has no dot before it; there are: lm_head"));
  CHECK(has(fault(targets({"q_proj"})),
            "; a pattern has to fit the whole name, as '*.q_proj' does; there are: "
            "backbone.layers.1.mixer.q_proj"));
  CHECK(has(fault(targets({"*_proj", "*.conv1d"})), "peft.target_modules: '*.conv1d' fits no"));
  CHECK(has(fault(targets({"*.gate"})), "peft.target_modules: '*.gate' fits no"));
  CHECK(has(fault(targets({"*.norm"})), "peft.target_modules: '*.norm' fits no"));
  CHECK(has(fault(targets({"*.embeddings"})), "peft.target_modules: '*.embeddings' fits no"));
  CHECK(has(fault(targets({"*.mixer.experts"}), tiny_config("M-")),
            "peft.target_modules: '*.mixer.experts' fits no"));
  CHECK(has(fault(all_but({"*.outproj"})), "peft.exclude_modules: '*.outproj' fits no"));
  // Of a model of texts and images.
  const ChosenAdapters language = choose(all_but({"*vision_tower*", "lm_head"}));
  CHECK(modules_of(language) == modules_of(choose(all_but({"lm_head"}))));
  CHECK(std::ranges::count(language.warnings,
                           "peft.exclude_modules: '*vision_tower*' fits nothing: the language model alone is "
                           "trained here") == 1);
  CHECK(has(fault(targets({"*.("})), "peft.target_modules: '*.(' is no pattern of module names: "));
}

TEST_CASE("peft: moe_rank_scaling divides the rank of routed experts by those that a token has") {
  PeftSection peft = targets({"*.q_proj", "*.mixer.experts"});
  peft.dim = 8;
  peft.alpha = 24;
  const auto rank = [](const ChosenAdapters& chosen, const char* module) {
    return chosen.adapters.modules.at(named(module)).rank;
  };
  const char *up = "backbone.layers.3.mixer.experts.up_proj",
             *down = "backbone.layers.3.mixer.experts.down_proj", *q = "backbone.layers.1.mixer.q_proj";
  CHECK(rank(choose(peft), up) == 8);
  peft.moe_rank_scaling = true;  // two experts for a token
  const ChosenAdapters exact = choose(peft);
  CHECK(rank(exact, up) == 4);
  CHECK(rank(exact, down) == 4);
  CHECK(rank(exact, q) == 8);
  CHECK(exact.warnings.empty());
  CHECK(exact.adapters.modules.at(named(up)).scale() == 6);  // alpha / that rank
  CHECK(exact.adapters.modules.at(named(q)).scale() == 3);
  peft.dim = 7;
  const ModelConfig twice = tiny_config("EE*E");
  const ChosenAdapters inexact = choose(peft, twice);
  CHECK(rank(inexact, "backbone.layers.0.mixer.experts.up_proj") == 3);
  CHECK(inexact.warnings ==
        std::vector<std::string>{
            "peft.moe_rank_scaling: dim 7 / num_experts_per_tok 2 is no whole number; experts have "
            "the rank 3"});
  const ChosenAdapters pruned =
      choose(peft, tiny_pruned_config());  // two experts of a token in block 3, three in block 7
  CHECK(rank(pruned, "backbone.layers.3.mixer.experts.up_proj") == 3);
  CHECK(rank(pruned, "backbone.layers.7.mixer.experts.down_proj") == 2);
  CHECK(
      pruned.warnings ==
      std::vector<std::string>{
          "peft.moe_rank_scaling: dim 7 / num_experts_per_tok 2 is no whole number; experts have the rank 3",
          "peft.moe_rank_scaling: dim 7 / num_experts_per_tok 3 of block 7 is no whole number; experts have "
          "the rank 2"});
  peft.dim = 1;
  CHECK(fault(peft) ==
        "peft.moe_rank_scaling: dim is 1 and num_experts_per_tok is 2; want a dim of at least that, so that "
        "experts have "
        "a rank of 1 or more");
  peft.target_modules = {"*.q_proj"};  // no routed experts
  CHECK(rank(choose(peft), q) == 1);
}

TEST_CASE("peft: settings go to every adapter") {
  PeftSection peft = targets({"*.q_proj"});
  const LoraAdapters usual = choose(peft).adapters;
  CHECK_FALSE(usual.f32);
  CHECK(usual.initialisation == LoraInitialisation::xavier);
  CHECK(usual.dropout == 0);
  CHECK(usual.dropout_position == DropoutPosition::post);
  CHECK(usual.dropout_seed == 7);
  CHECK(usual.modules.begin()->second == LoraModule{.rank = 8, .alpha = 32});
  CHECK(usual.modules.begin()->second.scale() == 4);
  peft.dim = 16;
  peft.alpha = 6;
  peft.use_rslora = true;
  peft.dropout = 0.125;
  peft.dropout_position = DropoutPosition::pre;
  peft.initialisation = LoraInitialisation::kaiming;
  peft.lora_dtype = DType::f32;
  const LoraAdapters other = choose(peft).adapters;
  CHECK(other.f32);
  CHECK(other.initialisation == LoraInitialisation::kaiming);
  CHECK(other.dropout == 0.125);
  CHECK(other.dropout_position == DropoutPosition::pre);
  CHECK(other.modules.begin()->second.scale() == 1.5);  // alpha / sqrt(r)
}

TEST_CASE("peft: in steps adapters move and nothing else does") {
  PeftSection peft = targets({"*_proj", "lm_head", "*.mixer.experts"});
  peft.dropout = 0.25;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool wide : {false, true}) {
      CAPTURE(dtype);
      CAPTURE(wide);
      if (wide) peft.lora_dtype = DType::f32;
      ModelSetup adapted = config();
      adapted.choices.lora = choose(peft).adapters;
      CHECK_FALSE(trains_adapters(config()));
      CHECK(trains_adapters(adapted));
      adapted.choices.frozen = base_parameters(adapted);
      CHECK(adapted.choices.frozen == base_parameters(config()));
      ModelSetup all_frozen = adapted;
      for (const TensorSpec& spec : tensor_specs(adapted))
        if (!spec.buffer) all_frozen.choices.frozen.insert(spec.id);
      CHECK_FALSE(trains_adapters(all_frozen));

      Stack model(adapted, dtype, Device::cpu);
      randomise(model, 3);
      ParallelModel parallel(model);
      OptimizerOptions options;
      Optimizer optimizer(model.parameters(), options);
      std::vector<Tensor> before;
      for (const Parameter& p : model.parameters().all()) before.push_back(p.value.clone());
      StepOptions step;
      step.lr = 0.05;
      step.weight_decay = 0.1;
      for (int i = 0; i < 3; ++i) {
        TestBatch batch = random_batch(adapted, {9, 5}, static_cast<std::uint64_t>(40 + i));
        batch.sequences = batch.sequences.numbered({i * 1000, i * 1000 + 500});
        const std::vector<TokenBatch> one{{batch.ids, batch.labels, batch.sequences}};
        CHECK(train_step(parallel, optimizer, one, step).outcome == StepOutcome::updated);
      }
      for (std::size_t i = 0; i < before.size(); ++i) {
        const Parameter& p = model.parameters().all()[i];
        CAPTURE(p.name);
        const bool adapter = p.name.find(".lora_") != p.name.npos;
        CHECK(compare_bits(p.value, before[i]).ok != adapter);
        if (!adapter && p.node) CHECK_FALSE(p.node->filled());
      }
      for (const StateTensor& t : optimizer.state()) CHECK_MESSAGE(has(t.name, ".lora_"), t.name);
    }
}
