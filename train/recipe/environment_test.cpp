#include "train/recipe/environment.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <map>

#include "tests/support/message_of.h"

using namespace nemocube;
using nemocube::testing::message_of;

namespace {

using Variables = std::map<std::string, std::string>;

/// What a recipe of a few lines says together with some variables.
Environment resolve(const std::string& yaml, const Variables& variables = {}) {
  const Recipe recipe = parse_recipe(cat("dataset: {_target_: mock}\n", yaml), "r.yaml", {}, RecipeUse::data);
  return resolve_environment(recipe, [&](const char* name) -> const char* {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
}

ParallelSettings settings(const std::string& yaml, const Variables& variables = {}) {
  return resolve(yaml, variables).settings;
}

std::string error_of(const std::string& yaml, const Variables& variables = {}) {
  return message_of([&] { resolve(yaml, variables); });
}

using Texts = std::vector<std::string>;
using Pairs = std::vector<std::pair<std::string, std::string>>;
const std::string experts = "distributed: {ep_size: 2}\n";

}  // namespace

TEST_CASE("environment: defaults") {
  const Environment e = resolve("");
  CHECK(e.to_set.empty());
  CHECK(e.notes.empty());
  CHECK(e.settings.dispatcher == DispatcherKind::local);
  CHECK_FALSE(e.settings.expert_reshard_after_forward);
  CHECK(e.settings.tp_cross_entropy == TpCrossEntropy::automatic);
  CHECK_FALSE(e.settings.block_weights);
  CHECK_FALSE(e.settings.refuse_underfill);
}

TEST_CASE("environment: variables outside are kept and noted, runtime_env is ahead of the named keys") {
  const Environment e = resolve(
      "dist_env: {torch_nccl_use_comm_nonblocking: true, pytorch_alloc_conf: a, nemotronh_ep_require_deepep: "
      "null, "
      "nemoautomodel_pp_skip_output_merge: false,\n"
      "  runtime_env: {NCCL_DEBUG: INFO, PYTORCH_ALLOC_CONF: b, SAME: 3, OTHER: x}}",
      {{"SAME", "3"}, {"OTHER", "y"}, {"NEMOAUTOMODEL_PP_SKIP_OUTPUT_MERGE", "yes"}});
  CHECK(e.to_set ==
        Pairs{{"TORCH_NCCL_USE_COMM_NONBLOCKING", "1"}, {"PYTORCH_ALLOC_CONF", "b"}, {"NCCL_DEBUG", "INFO"}});
  CHECK(e.notes ==
        Texts{"the environment variable NEMOAUTOMODEL_PP_SKIP_OUTPUT_MERGE is 'yes' and stays so; "
              "r.yaml: dist_env.nemoautomodel_pp_skip_output_merge is '0'",
              "the environment variable OTHER is 'y' and stays so; r.yaml: dist_env.runtime_env.OTHER "
              "is 'x'"});
}

TEST_CASE("environment: four places of one setting") {
  const std::string variable = "NEMOTRONH_EP_EXPERT_RESHARD_AFTER_FORWARD";
  const std::string key = "distributed: {moe: {reshard_after_forward: true}}\n";
  const std::string named = "nemotronh_ep_expert_reshard_after_forward: false";
  CHECK(settings(key).expert_reshard_after_forward == true);
  CHECK(settings(cat(key, "dist_env: {", named, "}")).expert_reshard_after_forward == false);
  const std::string all = cat(key, "dist_env: {", named, ", runtime_env: {", variable, ": on}}");
  CHECK(settings(all).expert_reshard_after_forward == true);
  CHECK(settings(all, {{variable, "0"}}).expert_reshard_after_forward == false);
}

TEST_CASE("environment: spellings of switches") {
  const auto refuses = [](const std::string& word) {
    return settings("", {{"NEMOAUTOMODEL_PP_STRICT_TOTAL_UNDERFILL", word}}).refuse_underfill;
  };
  for (const char* yes : {"1", "true", "True", "YES", "on"}) CHECK(refuses(yes));
  for (const char* no : {"0", "false", "No", "off", ""}) CHECK_FALSE(refuses(no));
  CHECK(message_of([&] { refuses("2"); }) ==
        "the environment variable NEMOAUTOMODEL_PP_STRICT_TOTAL_UNDERFILL is '2'; want 1, true, yes or on, "
        "or 0, false, no or off");
}

TEST_CASE("environment: the dispatcher") {
  const auto with = [](const std::string& backend, const std::string& dist_env, const Variables& v = {}) {
    return settings(cat(experts, "model: {config: x, backend: {", backend, "}}\ndist_env: {", dist_env, "}"),
                    v)
        .dispatcher;
  };
  CHECK(with("", "") == DispatcherKind::alltoall);
  CHECK(settings(experts).dispatcher == DispatcherKind::alltoall);
  CHECK(settings("distributed: {expert_tp_size: 2}").dispatcher == DispatcherKind::alltoall);
  CHECK(with("dispatcher: torch", "") == DispatcherKind::allgather);
  CHECK(with("", "nemotronh_ep_use_deepep_dispatch: false") == DispatcherKind::allgather);
  CHECK(with("dispatcher: torch", "nemotronh_ep_use_deepep_dispatch: true") == DispatcherKind::alltoall);
  CHECK(with("", "nemotronh_ep_use_deepep_dispatch: true", {{"NEMOTRONH_EP_USE_DEEPEP_DISPATCH", "0"}}) ==
        DispatcherKind::allgather);
  CHECK(with("", "nemotronh_ep_use_deepep_dispatch: true, nemotronh_ep_require_deepep: true") ==
        DispatcherKind::alltoall);
  CHECK(with("dispatcher: deepep", "nemotronh_ep_require_deepep: true") == DispatcherKind::alltoall);
  CHECK(settings(
            "model: {config: x, backend: {dispatcher: torch}}\ndist_env: {nemotronh_ep_require_deepep: true}")
            .dispatcher == DispatcherKind::local);

  const std::string torch = experts + "model: {config: x, backend: {dispatcher: torch}}\n";
  CHECK(
      resolve(torch + "dist_env: {nemotronh_ep_use_deepep_dispatch: true}").notes ==
      Texts{
          "r.yaml: dist_env.nemotronh_ep_use_deepep_dispatch makes the dispatcher alltoall, not allgather"});
  CHECK(error_of(torch + "dist_env: {nemotronh_ep_require_deepep: true}") ==
        "r.yaml: dist_env.nemotronh_ep_require_deepep is on, but r.yaml: model.backend.dispatcher is "
        "allgather; want "
        "alltoall, which is deepep here");
  CHECK(error_of("dist_env: {nemotronh_ep_require_deepep: true, nemotronh_ep_use_deepep_dispatch: false}") ==
        "r.yaml: dist_env.nemotronh_ep_require_deepep is on, but r.yaml: "
        "dist_env.nemotronh_ep_use_deepep_dispatch "
        "is off; want both on, or the first one off");
  CHECK(error_of("dist_env: {nemotronh_ep_use_deepep_dispatch: true}",
                 {{"NEMOTRONH_EP_REQUIRE_DEEPEP", "1"}, {"NEMOTRONH_EP_USE_DEEPEP_DISPATCH", "0"}}) ==
        "the environment variable NEMOTRONH_EP_REQUIRE_DEEPEP is on, but the environment variable "
        "NEMOTRONH_EP_USE_DEEPEP_DISPATCH is off; want both on, or the first one off");
  CHECK(error_of(experts + "model: {config: x, backend: {dispatcher: local}}") ==
        "r.yaml: model.backend.dispatcher is local, which moves no tokens, but ep_size * expert_tp_size is 2 "
        "* 1; want "
        "alltoall or allgather");
}

TEST_CASE("environment: what always holds here is said") {
  const Environment e = resolve(
      "dist_env: {backend: nccl, nemotronh_ep_physical_partition: false, nemotronh_ep_sync_inactive_experts: "
      "off}");
  CHECK(
      e.notes ==
      Texts{
          "r.yaml: dist_env.nemotronh_ep_physical_partition is off, but a rank of this build always holds "
          "its own "
          "experts alone",
          "r.yaml: dist_env.nemotronh_ep_sync_inactive_experts is off, but ranks of this build take part in "
          "every exchange, with or without tokens",
          "r.yaml: dist_env.backend is nccl; ranks that compute on CPUs exchange data over MPI"});
  CHECK(resolve("device: cuda\ndist_env: {backend: nccl}").notes.empty());
  CHECK(resolve("device: cuda\ndist_env: {backend: gloo}").notes ==
        Texts{"r.yaml: dist_env.backend is gloo; ranks exchange data over MPI"});
  CHECK(resolve("dist_env: {backend: mpi, nemotronh_ep_physical_partition: true}").notes.empty());
}

TEST_CASE("environment: the cross-entropy of tensor-parallel ranks") {
  const auto loss = [](const std::string& word, const Variables& variables) {
    return settings(cat("distributed: {tp_cross_entropy: ", word, "}"), variables).tp_cross_entropy;
  };
  const std::string on = "NEMOTRONH_TP_PARALLEL_CE", implementation = "NEMOTRONH_TP_PARALLEL_CE_IMPL";
  CHECK(loss("fused", {}) == TpCrossEntropy::fused);
  CHECK(loss("fused", {{implementation, "native"}}) == TpCrossEntropy::native);
  CHECK(loss("native", {{implementation, "TE"}}) == TpCrossEntropy::fused);
  CHECK(loss("native", {{implementation, "auto"}}) == TpCrossEntropy::automatic);
  CHECK(loss("native", {{implementation, "off"}}) == TpCrossEntropy::off);
  CHECK(loss("native", {{on, "0"}}) == TpCrossEntropy::off);
  CHECK(loss("native", {{on, "1"}}) == TpCrossEntropy::native);
  CHECK(loss("off", {{on, "1"}}) == TpCrossEntropy::automatic);
  CHECK(loss("off", {{on, "1"}, {implementation, "te"}}) == TpCrossEntropy::fused);
  CHECK(loss("auto", {{on, "1"}, {implementation, "off"}}) == TpCrossEntropy::off);
  CHECK(loss("auto", {{on, "no"}, {implementation, "te"}}) == TpCrossEntropy::off);
  CHECK(resolve("", {{implementation, "native"}}).notes ==
        Texts{"the environment variable NEMOTRONH_TP_PARALLEL_CE_IMPL makes the tensor-parallel "
              "cross-entropy native, "
              "not auto"});
  CHECK(settings(cat("dist_env: {runtime_env: {", implementation, ": te}}")).tp_cross_entropy ==
        TpCrossEntropy::fused);
  CHECK(error_of("", {{implementation, "fast"}}) ==
        "the environment variable NEMOTRONH_TP_PARALLEL_CE_IMPL is 'fast'; want native, te, auto or off");
}

TEST_CASE("environment: weights of blocks, underfill and warnings") {
  const std::string pipeline = "distributed: {pp_size: 2, pipeline: {block_weights: {moe: 5}}}\n";
  const std::string variable = "NEMOAUTOMODEL_PP_BLOCK_WEIGHTS";
  CHECK(settings(pipeline).block_weights == parse_block_weights("moe=5"));
  CHECK(settings(pipeline, {{variable, ""}}).block_weights == parse_block_weights("moe=5"));
  const Environment e = resolve(pipeline, {{variable, "mlp=7"}});
  CHECK(e.settings.block_weights == parse_block_weights("mlp=7"));
  CHECK(e.notes.size() == 1);
  CHECK(error_of("", {{variable, "moe=x"}})
            .starts_with("the environment variable NEMOAUTOMODEL_PP_BLOCK_WEIGHTS: block weights: the weight "
                         "of moe is 'x'"));

  const std::string strict = "NEMOAUTOMODEL_PP_STRICT_TOTAL_UNDERFILL",
                    allow = "NEMOAUTOMODEL_PP_ALLOW_UNDERFILL";
  CHECK(settings("", {{strict, "1"}}).refuse_underfill);
  CHECK_FALSE(settings("", {{strict, "1"}, {allow, "1"}}).refuse_underfill);
  CHECK_FALSE(settings("", {{allow, "1"}}).refuse_underfill);
}

TEST_CASE("environment: set variables are there, once") {
  const char* name = "NEMOCUBE_TEST_OF_RUNTIME_ENV";
  const Recipe recipe =
      parse_recipe(cat("dataset: {_target_: mock}\ndist_env: {runtime_env: {", name, ": yes}}"), "r.yaml", {},
                   RecipeUse::data);
  REQUIRE(::getenv(name) == nullptr);
  set_variables(resolve_environment(recipe));
  REQUIRE(::getenv(name) != nullptr);
  CHECK(std::string(::getenv(name)) == "1");
  const Environment again = resolve_environment(recipe);
  CHECK(again.to_set.empty());
  CHECK(again.notes.empty());
  ::unsetenv(name);
}
