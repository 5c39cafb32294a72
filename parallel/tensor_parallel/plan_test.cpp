#include "parallel/tensor_parallel/plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "model/test_models.h"
#include "parallel/tensor_parallel/words.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;
using Rules = std::vector<TensorParallelRule>;

namespace {

std::string error_of(const Rules& rules, const char* blocks = "M*-E") {
  return message_of([&] { TensorParallelPlan(tiny_config(blocks), false, rules); });
}

/// A model whose attention has norms of heads.
ModelConfig with_head_norms(const char* blocks) {
  ModelConfig config = tiny_config(blocks);
  config.attention.head_norm = NormKind::rmsnorm;
  return config;
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
                                 {"backbone.norm_f", "sequence_parallel"}});
  CHECK(plan.style(named("backbone.embeddings")) == TensorStyle::vocab_parallel);
  CHECK(plan.style(named("lm_head")) == TensorStyle::vocab_parallel);
  CHECK(plan.style(named("backbone.norm_f")) == TensorStyle::sequence_parallel);
  REQUIRE(plan.notes().size() == 2);
  CHECK(plan.notes()[0] ==
        "the tensor-parallel plan: 'ep_router' for 'model.layers.*.mlp.experts' is skipped, the grid decides "
        "here");
  CHECK(plan.notes()[1] ==
        "the tensor-parallel plan: 'sequence_parallel' for 'backbone.norm_f' cuts rows with "
        "distributed.sequence_parallel: true, not without it");
}

TEST_CASE("tensor plan: what each word is for each module: a style, or the words that it can have") {
  const ModelConfig config = with_head_norms("M*-EL");
  const std::map<std::string, std::string> modules{
      {"embeddings", "backbone.embeddings"},
      {"head", "lm_head"},
      {"norm", "backbone.layers.1.norm"},
      {"query", "backbone.layers.1.mixer.q_proj"},
      {"output", "backbone.layers.1.mixer.o_proj"},
      {"head norm", "backbone.layers.1.mixer.q_norm"},
      {"convolution", "backbone.layers.0.mixer.conv1d"},
      {"gated norm", "backbone.layers.0.mixer.norm"},
      {"router", "backbone.layers.3.mixer.gate"},
      {"experts in", "backbone.layers.3.mixer.experts.up_proj"},
      {"experts out", "backbone.layers.3.mixer.experts.down_proj"},
      {"linear", "backbone.layers.4.mixer.linear"},
  };
  // The words that a module can have beside `replicated`, which the last column is about.
  struct Row {
    const char *module, *words, *words_with_cut_rows, *wish;
  };
  const std::vector<Row> rows{
      {"embeddings", "vocab_parallel rowwise rowwise_rep rowwise_split_input embedding_rowwise", "",
       "vocab_parallel or replicated"},
      {"head", "vocab_parallel colwise colwise_rep colwise_gather_output", "",
       "vocab_parallel or replicated"},
      {"norm", "sequence_parallel replicated replicate", "sequence_parallel replicated_with_grad_allreduce",
       "sequence_parallel or replicated"},
      {"query", "colwise", "", "colwise or replicated"},
      {"output", "rowwise", "", "rowwise or replicated"},
      {"head norm", "replicated_with_grad_allreduce", "", "replicated_with_grad_allreduce or replicated"},
      {"convolution", "colwise", "", "colwise or replicated"},
      {"gated norm", "colwise", "", "colwise or replicated"},
      {"router", "sequence_parallel replicated_with_grad_allreduce", "",
       "sequence_parallel or replicated_with_grad_allreduce"},
      {"experts in", "expert_colwise colwise grouped_gemm", "", "expert_colwise"},
      {"experts out", "expert_rowwise rowwise grouped_gemm", "", "expert_rowwise"},
      {"linear", "replicated replicate", "", "replicated"},
  };
  for (const Row& row : rows)
    for (const bool cut_rows : {false, true}) {
      const char* const words = cut_rows && *row.words_with_cut_rows ? row.words_with_cut_rows : row.words;
      for (const TensorPlanWord& word : tensor_plan_words()) {
        if (!word.refusal.empty() || word.of_experts) continue;
        CAPTURE(row.module);
        CAPTURE(std::string(word.word));
        const std::string message = message_of([&] {
          TensorParallelPlan(config, cut_rows, {{modules.at(row.module), std::string(word.word)}});
        });
        if (cat(' ', words, ' ').find(cat(' ', word.word, ' ')) != std::string::npos)
          CHECK(message == "no error");
        else if (word.word.starts_with("replicate") && !word.word.ends_with("allreduce") &&
                 std::string_view(row.wish).ends_with("or replicated") && row.module != std::string("norm"))
          // A mixer is replicated as a whole.
          CHECK((message == "no error" || message.find("want both cut or both replicated") != message.npos));
        else if (!cut_rows)
          CHECK(message == cat("the tensor-parallel plan says '", word.word, "' for '",
                               modules.at(row.module), "'; want ", row.wish));
        else
          CHECK(message.starts_with("the tensor-parallel plan says"));
      }
    }
}

TEST_CASE("tensor plan: words that no module here can have are refused with the nearest that is served") {
  for (const TensorPlanWord& word : tensor_plan_words()) {
    CAPTURE(std::string(word.word));
    if (!word.means.empty()) CHECK(find_tensor_plan_word(word.means) != nullptr);
    CHECK(word.refusal.empty() == word.nearest.empty());
    if (word.refusal.empty()) continue;
    CHECK(find_tensor_plan_word(word.nearest)->refusal.empty());
    CHECK(error_of({{"no.such_module", std::string(word.word)}}) ==
          cat("the tensor-parallel plan: '", word.word, "' for 'no.such_module': ", word.refusal,
              "; the nearest word that is served is ", word.nearest));
  }
}

TEST_CASE("tensor plan: modules that follow another one can be named, and are to say what they are") {
  const ModelConfig config = with_head_norms("M*");
  const std::string mixer = "backbone.layers.*.mixer.";
  const TensorParallelPlan plan(config, true,
                                {{mixer + "q_norm", "replicated_with_grad_allreduce"},
                                 {mixer + "k_norm", "replicated_with_grad_allreduce"},
                                 {mixer + "conv1d", "colwise"},
                                 {"backbone.layers.0.mixer.norm", "colwise"}});
  CHECK(plan.style(mixer_name(1, "q_proj")) == TensorStyle::colwise);
  CHECK(plan.rules().front().pattern == mixer + "q_norm");
  CHECK(plan.notes().empty());
  // A pattern of the whole mixer reaches them too.
  CHECK(TensorParallelPlan(config, false, {{"backbone.layers.1.mixer.*", "replicate"}})
            .style(mixer_name(1, "o_proj")) == TensorStyle::replicated);
  CHECK(message_of([&] {
          TensorParallelPlan(config, false, {{mixer + "q_norm", "replicated"}});
        }) ==
        "the tensor-parallel plan says colwise for 'backbone.layers.1.mixer.q_proj' and replicated for "
        "'backbone.layers.1.mixer.q_norm'; want both cut or both replicated: the latter follows the former");
  // The head of a tied model has the weight of the embeddings.
  ModelConfig tied = config;
  tied.tie_word_embeddings = true;
  CHECK(TensorParallelPlan(tied, false, {{"lm_head", "colwise_rep"}}).style(embeddings_name()) ==
        TensorStyle::vocab_parallel);
  CHECK(message_of([&] {
          TensorParallelPlan(tied, false, {{"lm_head", "replicated"}});
        }) ==
        "the tensor-parallel plan says vocab_parallel for 'backbone.embeddings' and replicated for "
        "'lm_head'; want both cut or both replicated: the latter follows the former");
  CHECK(TensorParallelPlan(tied, false, {{"lm_head", "replicated"}, {"backbone.embeddings", "replicated"}})
            .style(embeddings_name()) == TensorStyle::replicated);
}

TEST_CASE("tensor plan: patterns may begin at the body of the model") {
  const TensorParallelPlan plan(tiny_config("*E"), false,
                                {{"layers.0.mixer.*", "replicated"},
                                 {"model.norm_f", "replicated"},
                                 {"embeddings", "embedding_rowwise"},
                                 {"layers.*.mixer.experts", "moe_tp_experts"}});
  CHECK(plan.style(mixer_name(0, "q_proj")) == TensorStyle::replicated);
  CHECK(plan.style(final_norm_name()) == TensorStyle::sequence_parallel);
  CHECK(plan.notes().size() == 1);
  CHECK(error_of({{"layers.*.mixer.experts", "moe_tp_experts"}}, "-") ==
        "the tensor-parallel plan: 'layers.*.mixer.experts' is 'moe_tp_experts' and matches no stack of "
        "experts of this model");
}

TEST_CASE("tensor plan: what makes no plan") {
  CHECK(error_of({{"lm_head", "colwize"}}) ==
        "Unknown parallel style 'colwize' for 'lm_head'; want one of replicated, colwise, rowwise, "
        "colwise_rep, rowwise_rep, sequence_parallel, vocab_parallel, expert_colwise, expert_rowwise, "
        "replicated_with_grad_allreduce, replicate, colwise_gather_output, rowwise_split_input, "
        "embedding_rowwise, packed_colwise, grouped_gemm, moe_tp_experts, ep_dispatch_experts");
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
