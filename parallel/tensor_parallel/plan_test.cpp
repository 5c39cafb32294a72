#include "parallel/tensor_parallel/plan.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "model/test_models.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;
using Rules = std::vector<TensorParallelRule>;

namespace {

std::string error_of(const Rules& rules, const char* blocks = "M*-E") {
  return message_of([&] { TensorParallelPlan(tiny_config(blocks), false, rules); });
}

/// One line for each rule: "backbone.layers.*.mixer.q_proj": colwise
std::string to_yaml(const Rules& rules) {
  std::string text;
  for (const TensorParallelRule& rule : rules) text += cat('"', rule.pattern, "\": ", rule.style, '\n');
  return text;
}

}  // namespace

TEST_CASE("tensor plan: the usual plan, its rules and for every tensor") {
  const TensorParallelPlan plan(tiny_config_with_all_tensors());
  CHECK(to_yaml(plan.rules()) == R"("backbone.embeddings": vocab_parallel
"backbone.layers.*.norm": sequence_parallel
"backbone.layers.*.mixer.q_proj": colwise
"backbone.layers.*.mixer.k_proj": colwise
"backbone.layers.*.mixer.v_proj": colwise
"backbone.layers.*.mixer.o_proj": rowwise
"backbone.layers.*.mixer.in_proj": colwise
"backbone.layers.*.mixer.out_proj": rowwise
"backbone.layers.*.mixer.up_proj": colwise
"backbone.layers.*.mixer.down_proj": rowwise
"backbone.layers.*.mixer.gate": sequence_parallel
"backbone.layers.*.mixer.fc1_latent_proj": sequence_parallel
"backbone.layers.*.mixer.fc2_latent_proj": sequence_parallel
"backbone.layers.*.mixer.experts.up_proj": expert_colwise
"backbone.layers.*.mixer.experts.down_proj": expert_rowwise
"backbone.layers.*.mixer.shared_experts.up_proj": colwise
"backbone.layers.*.mixer.shared_experts.down_proj": rowwise
"backbone.norm_f": sequence_parallel
"lm_head": vocab_parallel
)");
  // Only what the model has.
  CHECK(to_yaml(TensorParallelPlan(tiny_config("-")).rules()) == R"("backbone.embeddings": vocab_parallel
"backbone.layers.*.norm": sequence_parallel
"backbone.layers.*.mixer.up_proj": colwise
"backbone.layers.*.mixer.down_proj": rowwise
"backbone.norm_f": sequence_parallel
"lm_head": vocab_parallel
)");
  for (const char* member : {"in_proj.weight", "in_proj.bias", "conv1d.weight", "conv1d.bias", "A_log", "D",
                             "dt_bias", "norm.weight"}) {
    const auto specs = tensor_specs(tiny_config_with_all_tensors());
    const auto spec = std::ranges::find(specs, cat("backbone.layers.0.mixer.", member), &TensorSpec::name);
    REQUIRE(spec != specs.end());
    CHECK(spec->module == mixer_name(0, "in_proj"));
    CHECK(plan.style(*spec) == TensorStyle::colwise);
  }
  CHECK(plan.style(named("backbone.layers.0.norm")) == TensorStyle::sequence_parallel);
  CHECK(plan.style(named("backbone.layers.3.mixer.gate")) == TensorStyle::sequence_parallel);
  CHECK(plan.style(named("backbone.layers.3.mixer.experts.down_proj")) == TensorStyle::expert_rowwise);
  CHECK(plan.cuts_any("q_proj"));
  CHECK_FALSE(TensorParallelPlan(tiny_config("M-")).cuts_any("q_proj"));
  CHECK_FALSE(plan.sequence_parallel());
  CHECK(TensorParallelPlan(tiny_config_with_all_tensors(), true).sequence_parallel());
}

TEST_CASE("tensor plan: the user's rules come first, and the first that matches counts") {
  const Rules rules{{"backbone.layers.1.mixer.*_proj", "replicated"},
                    {"backbone.layers.*.mixer.q_proj", "colwise"},
                    {"backbone.layers.*.mixer.shared_experts.*", "replicated"},
                    {"lm_head", "replicated"}};
  const TensorParallelPlan plan(tiny_config("**E"), false, rules);
  CHECK(plan.style(named("backbone.layers.0.mixer.q_proj")) == TensorStyle::colwise);
  CHECK(plan.style(named("backbone.layers.1.mixer.q_proj")) == TensorStyle::replicated);
  CHECK(plan.style(named("backbone.layers.1.mixer.o_proj")) == TensorStyle::replicated);
  CHECK(plan.style(named("backbone.layers.2.mixer.shared_experts.up_proj")) == TensorStyle::replicated);
  CHECK(plan.style(named("backbone.layers.2.mixer.experts.up_proj")) == TensorStyle::expert_colwise);
  CHECK(plan.style(named("lm_head")) == TensorStyle::replicated);
  const std::string yaml = to_yaml(plan.rules());
  CHECK(
      yaml.starts_with("\"backbone.layers.1.mixer.*_proj\": replicated\n"
                       "\"backbone.layers.*.mixer.q_proj\": colwise\n"));
  CHECK(yaml.find("shared_experts.up_proj") == std::string::npos);  // the usual rule does not count any more
  CHECK(yaml.find("\"lm_head\": vocab_parallel") == std::string::npos);
  CHECK(plan.notes().empty());
}

TEST_CASE("tensor plan: words of other plans") {
  const TensorParallelPlan plan(tiny_config("*"), false,
                                {{"backbone.embeddings", "rowwise_rep"},
                                 {"lm_head", "colwise_rep"},
                                 {"model.layers.*.mlp.experts", "ep_router"},
                                 {"backbone.norm_f", "replicated_with_grad_allreduce"}});
  CHECK(plan.style(named("backbone.embeddings")) == TensorStyle::vocab_parallel);
  CHECK(plan.style(named("lm_head")) == TensorStyle::vocab_parallel);
  CHECK(plan.style(named("backbone.norm_f")) == TensorStyle::sequence_parallel);
  REQUIRE(plan.notes().size() == 2);
  CHECK(plan.notes()[0] ==
        "the tensor-parallel plan: 'ep_router' for 'model.layers.*.mlp.experts' is skipped, the grid decides "
        "here");
}

TEST_CASE("tensor plan: what makes no plan") {
  CHECK(error_of({{"lm_head", "colwize"}}) ==
        "Unknown parallel style 'colwize' for 'lm_head'; want one of replicated, colwise, rowwise, "
        "colwise_rep, rowwise_rep, sequence_parallel, vocab_parallel, expert_colwise, expert_rowwise");
  CHECK(error_of({{"model.layers.*.q_proj", "colwise"}}, "-") ==
        "the tensor-parallel plan: 'model.layers.*.q_proj' matches no module of this model; the modules are "
        "backbone.embeddings, backbone.layers.*.norm, backbone.layers.*.mixer.up_proj, "
        "backbone.layers.*.mixer.down_proj, backbone.norm_f, lm_head");
  // `*` ends at a dot.
  CHECK(error_of({{"backbone.*.q_proj", "colwise"}}).find("matches no module") != std::string::npos);
  CHECK(error_of({{"backbone.layers.1.mixer.q_proj", "rowwise"}}) ==
        "the tensor-parallel plan says 'rowwise' for 'backbone.layers.1.mixer.q_proj'; want colwise or "
        "replicated");
  CHECK(error_of({{"backbone.layers.*.mixer.experts.*", "replicated"}}) ==
        "the tensor-parallel plan says 'replicated' for 'backbone.layers.3.mixer.experts.up_proj'; want "
        "expert_colwise");
  CHECK(error_of({{"backbone.layers.*.mixer.o_proj", "replicated"}}) ==
        "the tensor-parallel plan says colwise for 'backbone.layers.1.mixer.k_proj' and replicated for "
        "'backbone.layers.1.mixer.o_proj'; want both cut or both replicated");
  CHECK(error_of({{"backbone.layers.*.mixer.shared_experts.down_proj", "replicated"}})
            .find("replicated for 'backbone.layers.3.mixer.shared_experts.down_proj' and colwise for "
                  "'backbone.layers.3.mixer.shared_experts.up_proj'") != std::string::npos);
  CHECK(error_of({{"backbone.layers.0.mixer.in_proj", "replicated"}}).find("want both cut") !=
        std::string::npos);
}

TEST_CASE("tensor plan: mixers on one norm are cut alike") {
  ModelConfig config = tiny_config("ME*-");
  own_config(config, 2).residual = Residual::shared_norm;
  const TensorParallelRule attention{"backbone.layers.2.mixer.*", "replicated"},
      shared_expert{"backbone.layers.1.mixer.shared_experts.*", "replicated"};
  CHECK(
      message_of([&] { TensorParallelPlan(config, false, {attention}); }) ==
      "the tensor-parallel plan says colwise for 'backbone.layers.1.mixer.shared_experts.up_proj' and "
      "replicated for 'backbone.layers.2.mixer.q_proj'; want both cut or both replicated: their blocks work "
      "on the same norm, so that what they send is sent once");
  CHECK(TensorParallelPlan(config, false, {attention, shared_expert}).style(mixer_name(2, "q_proj")) ==
        TensorStyle::replicated);
}
