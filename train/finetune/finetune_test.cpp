#include <doctest/doctest.h>

#include "model/test_models.h"
#include "tests/support/message_of.h"
#include "train/finetune/frozen.h"
#include "train/finetune/module_pattern.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

bool fits(const char* pattern, const char* name) { return ModulePattern("freeze", pattern).fits(name, {}); }

std::string freeze_fault(const std::vector<std::string>& patterns) {
  return message_of([&] { frozen_tensors(tiny_config("M*-E"), patterns); });
}

}  // namespace

TEST_CASE("module patterns: as AutoModel's matcher reads them") {
  CHECK(fits("lm_head", "lm_head"));
  CHECK_FALSE(fits("*.lm_head", "lm_head"));
  CHECK(fits("*_proj", "backbone.layers.0.mixer.in_proj"));
  CHECK_FALSE(fits("q_proj", "backbone.layers.0.mixer.q_proj"));
  CHECK(fits("*.q_proj", "backbone.layers.0.mixer.q_proj"));
  CHECK(fits("model.layers.3.mixer.q_proj", "backbone.layers.3.mixer.q_proj"));
  CHECK(fits("backbone.layers.3.mixer.q_proj", "backbone.layers.3.mixer.q_proj"));
  CHECK(fits("*.layers.1.*.q_proj", "backbone.layers.1.mixer.q_proj"));
  CHECK(fits("*.layers.1.*.q_proj", "backbone.layers.12.mixer.q_proj"));  // the star swallows the dot
  CHECK_FALSE(fits("*.layers.1.*.q_proj", "backbone.layers.2.mixer.q_proj"));
  CHECK(fits("*.experts*", "backbone.layers.1.mixer.experts"));
  CHECK(fits("*experts*", "backbone.layers.1.mixer.shared_experts.up_proj"));
  CHECK_FALSE(fits("*.mixer.experts*", "backbone.layers.1.mixer.shared_experts.up_proj"));
  CHECK(fits("model.(norm_f|embeddings)", "backbone.norm_f"));
  CHECK(message_of([] {
          ModulePattern("peft.target_modules", "(");
        }).starts_with("peft.target_modules: '(' is no pattern of module names: "));
}

TEST_CASE("freeze: modules with all that is in them, and single tensors") {
  const ModelConfig config = tiny_config("M*-E");
  const auto names = [&](const char* pattern) {
    const FrozenTensors frozen = frozen_tensors(config, {pattern});
    CHECK(frozen.lines.size() == 1);
    CHECK(frozen.lines[0].tensors == static_cast<std::int64_t>(frozen.names.size()));
    std::set<std::string, std::less<>> texts;
    for (const TensorName& name : frozen.names) texts.insert(config.text(name));
    return texts;
  };
  CHECK(names("model.layers.2") ==
        std::set<std::string, std::less<>>{"backbone.layers.2.norm.weight",
                                           "backbone.layers.2.mixer.up_proj.weight",
                                           "backbone.layers.2.mixer.down_proj.weight"});
  CHECK(names("*.mixer.experts") ==
        std::set<std::string, std::less<>>{"backbone.layers.3.mixer.experts.up_proj",
                                           "backbone.layers.3.mixer.experts.down_proj"});
  CHECK(names("*.A_log") == std::set<std::string, std::less<>>{"backbone.layers.0.mixer.A_log"});
  CHECK(names("*.gate") ==
        std::set<std::string, std::less<>>{"backbone.layers.3.mixer.gate.weight"});  // no buffer
  CHECK(frozen_tensors(config, {}).names.empty());
}

TEST_CASE("freeze: patterns that fit nothing or all are refused") {
  CHECK(
      freeze_fault({"*.q_porj"}).starts_with("freeze: '*.q_porj' fits no module of this model; there are: "));
  CHECK(freeze_fault({"lm_head", "model.layer.0.mixer.in_proj"}).find("backbone.layers.0.mixer.in_proj") !=
        std::string::npos);
  CHECK(freeze_fault({"*"}) == "freeze: the patterns fit every module, and nothing is left to train");
}
