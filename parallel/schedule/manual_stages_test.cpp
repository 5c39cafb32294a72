#include <doctest/doctest.h>

#include "parallel/schedule/stages.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Parts = std::vector<std::vector<std::string>>;

/// Names as files have them, and two that are spelled otherwise.
const StageModules known{
    .names = {},
    .find = [](std::string_view name) -> std::optional<TensorName> {
      if (name == "model.norm") return final_norm_name();
      if (name == "model.layers.1") return block_name(1);
      const auto found = ModelNames().find(name);
      const bool whole = found && (found->part != NamePart::block || found->member.empty());
      return whole && !found->in_mixer() && !found->in_depth() ? found : std::nullopt;
    },
    .has_no_parameters = [](std::string_view name) { return name == "backbone.rotary_emb"; },
    .wanted = "backbone.embeddings, backbone.layers.N, backbone.norm_f or lm_head"};

std::string fault(const Parts& parts, std::int64_t blocks = 2) {
  return message_of([&] { manual_stages(parts, blocks, known); });
}

}  // namespace

TEST_CASE("manual stages: the lists of a 52-block recipe, each with rotary_emb") {
  Parts parts;
  const std::vector<std::int64_t> ends{6, 13, 21, 29, 37, 44, 50, 52};
  std::vector<ModelChunk> expected;
  for (std::int64_t block = 0; const std::int64_t end : ends) {
    expected.push_back({block, end, block == 0, end == 52});
    parts.emplace_back();
    for (; block < end; ++block) parts.back().push_back(cat("backbone.layers.", block));
    parts.back().emplace_back("backbone.rotary_emb");
  }
  parts.front().insert(parts.front().begin(), "backbone.embeddings");
  parts.back().insert(parts.back().end(), {"backbone.norm_f", "lm_head"});
  const ManualStages result = manual_stages(parts, 52, known);
  CHECK(result.stages == expected);
  CHECK(result.skipped == std::vector<std::string>(8, "backbone.rotary_emb"));
}

TEST_CASE("manual stages: any order within a list, ends without blocks") {
  const Parts parts{{"backbone.embeddings"},
                    {"backbone.layers.1", "backbone.rotary_emb", "backbone.layers.0"},
                    {"backbone.norm_f", "lm_head"}};
  const ManualStages result = manual_stages(parts, 2, known);
  CHECK(result.stages ==
        std::vector<ModelChunk>{{0, 0, true, false}, {0, 2, false, false}, {2, 2, false, true}});
  CHECK(result.skipped == std::vector<std::string>{"backbone.rotary_emb"});
  CHECK(manual_stages({{"lm_head", "model.norm", "backbone.layers.0", "backbone.embeddings"}}, 1, known)
            .stages == std::vector<ModelChunk>{{0, 1, true, true}});
}

TEST_CASE("manual stages: mistakes name list and module") {
  const std::string e = "backbone.embeddings", b0 = "backbone.layers.0", b1 = "backbone.layers.1",
                    n = "backbone.norm_f", h = "lm_head", key = "module_fqns_per_model_part";
  CHECK(fault({{e, b0}, {b1, n, h}}) == "no error");
  CHECK(fault({}) == key + " has no lists; want one for each stage");
  CHECK(fault({{e, b0, b1}, {"backbone.rotary_emb"}, {n, h}}) == key + "[1] names no module with parameters");
  CHECK(fault({{e, b0}, {}, {b1, n, h}}) == key + "[1] names no module with parameters");
  CHECK(fault({{e, b0}, {n, h}}) == key + ": 'backbone.layers.1' is in no list");
  CHECK(fault({{b0}, {b1, n, h}}) == key + ": 'backbone.embeddings' is in no list");
  CHECK(fault({{e, b0}, {b1, h}}) == key + ": 'backbone.norm_f' is in no list");
  CHECK(fault({{e, b0}, {b1, n}}) == key + ": 'lm_head' is in no list");
  CHECK(fault({{e, b0, "model.layers.1"}, {b1, n, h}}) ==
        key + "[1]: 'backbone.layers.1' is already in list 0");
  CHECK(fault({{e, b0, e}, {b1, n, h}}) == key + "[0]: 'backbone.embeddings' is already in list 0");
  CHECK(fault({{e, b1}, {b0, n, h}}) ==
        key +
            "[0]: 'backbone.layers.1', but 'backbone.layers.0' is in list 1; want blocks in ascending order");
  CHECK(fault({{e, b0}, {b1, "backbone.layers.2", n, h}}) ==
        key + "[1]: 'backbone.layers.2', but the model has 2 blocks");
  CHECK(fault({{b0}, {e, b1, n, h}}) == key + "[1]: 'backbone.embeddings'; want it in list 0, the first");
  CHECK(fault({{e, b0, n}, {b1, h}}) == key + "[0]: 'backbone.norm_f'; want it in list 1, the last");
  CHECK(fault({{e, b0, h}, {b1, n}}) == key + "[0]: 'lm_head'; want it in list 1, the last");
  for (const char* name : {"layers.1", "backbone.layers.", "backbone.layers.x", "backbone.layers.-1",
                           "backbone.layers.1.mixer", "backbone.lm_head", "backbone.layer.1", ""})
    CHECK(fault({{e, b0}, {name, n, h}})
              .find(cat(key, "[1]: unknown module '", name, "'; want backbone.emb")) == 0);
}
