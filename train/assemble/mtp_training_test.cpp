#include "train/assemble/mtp_training.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "core/log.h"
#include "data/hf/hf_weights.h"
#include "data/json/test_dir.h"
#include "model/test_models.h"
#include "tests/support/message_of.h"
#include "train/model_io/model_io.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Recipe recipe_with(std::optional<std::int64_t> depths, std::optional<bool> repeated) {
  Recipe recipe;
  recipe.file = "r.yaml";
  recipe.model.emplace();
  recipe.model->path = "model";
  recipe.model->num_nextn_predict_layers = depths;
  recipe.model->mtp_use_repeated_layer = repeated;
  return recipe;
}

MtpTraining of(std::optional<std::int64_t> depths, std::optional<bool> repeated,
               std::optional<std::int64_t> stored) {
  return mtp_training(recipe_with(depths, repeated), tiny_config(), stored);
}

}  // namespace

TEST_CASE("mtp training: the keys, and where they are absent what the weights say") {
  CHECK(of({}, {}, {}).depths == 0);
  CHECK(of(0, true, 1).depths == 0);
  CHECK(of(1, {}, {}) == MtpTraining{1, false, 0.1});
  CHECK(of(2, true, {}) == MtpTraining{2, true, 0.1});
  CHECK(of(2, false, {}) == MtpTraining{2, false, 0.1});
  CHECK(of(2, {}, 1) == MtpTraining{2, true, 0.1});
  CHECK(of(2, {}, 2) == MtpTraining{2, false, 0.1});
  CHECK(of(2, true, 1) == MtpTraining{2, true, 0.1});
}

TEST_CASE("mtp training: what neither keys nor weights say is refused, and so are weights of another kind") {
  const auto refused = [](std::optional<std::int64_t> depths, std::optional<bool> repeated,
                          std::optional<std::int64_t> stored) {
    return message_of([&] { (void)of(depths, repeated, stored); });
  };
  CHECK(refused(2, {}, {}) ==
        "r.yaml: model.num_nextn_predict_layers is 2: want model.mtp_use_repeated_layer true (one layer, "
        "applied "
        "2 times) or false (2 layers), found neither it nor weights that tell");
  CHECK(refused(2, true, 2) ==
        "r.yaml: model.num_nextn_predict_layers is 2, model.mtp_use_repeated_layer is true: want the weights "
        "of "
        "1 depth of multi-token prediction, found those of 2 in model");
  CHECK(refused(3, {}, 2).find("is absent: want the weights of 3 depths") != std::string::npos);
  CHECK(refused(2, false, 1).find("want the weights of 2 depths") != std::string::npos);
  CHECK(refused(2, {}, 0).find("want the weights of 2 depths") != std::string::npos);
}

TEST_CASE(
    "mtp training: a scaling factor alone trains the depths of config.json; the section's comes first") {
  ModelConfig config = tiny_config();
  config.num_nextn_predict_layers = 1;
  Recipe recipe = recipe_with({}, {});
  CHECK(mtp_training(recipe, config, {}).depths == 0);
  recipe.model->mtp_loss_scaling_factor = 0.2;
  CHECK(mtp_training(recipe, config, {}) == MtpTraining{1, false, 0.2});
  recipe.mtp.scaling_factor = 0.3;
  CHECK(mtp_training(recipe, config, {}) == MtpTraining{1, false, 0.3});
  recipe.model->num_nextn_predict_layers = 0;
  CHECK(mtp_training(recipe, config, {}).depths == 0);
}

TEST_CASE("mtp training: a key that says how depths are trained is refused where there are none") {
  ModelConfig none = tiny_config(), one = none;
  one.num_nextn_predict_layers = 1;
  const std::string end =
      "; the model's config.json says that it has no multi-token prediction (num_nextn_predict_layers 0)";
  const auto refused = [&](const char* key, const auto& set) {
    CAPTURE(key);
    Recipe recipe = recipe_with({}, {});
    set(recipe);
    for (const ModelSource source : {ModelSource::config, ModelSource::pretrained}) {
      recipe.model->source = source;
      CHECK(message_of([&] { (void)mtp_training(recipe, OpenedModel(recipe.model->path, none)); }) ==
            cat("r.yaml: ", key,
                " is given, and model.num_nextn_predict_layers is not: want model.num_nextn_predict_layers 1 "
                "or more, or no ",
                key, end));
    }
    std::vector<std::string> warnings;
    set_log_listener([&](LogLevel, const std::string& text) { warnings.push_back(text); });
    recipe.model->num_nextn_predict_layers = 0;
    CHECK(mtp_training(recipe, OpenedModel(recipe.model->path, none)).depths == 0);
    set_log_listener({});
    CHECK(warnings == std::vector{cat("r.yaml: ", key,
                                      " has no effect: no depth of multi-token prediction is trained "
                                      "(model.num_nextn_predict_layers is 0)")});
  };
  refused("model.mtp_use_repeated_layer", [](Recipe& r) { r.model->mtp_use_repeated_layer = true; });
  refused("model.mtp_loss_scaling_factor", [](Recipe& r) { r.model->mtp_loss_scaling_factor = 0.2; });
  refused("mtp.scaling_factor", [](Recipe& r) { r.mtp.scaling_factor = 0.2; });
  CHECK(mtp_training(recipe_with(1, {}), none, {}).depths == 1);
  CHECK(mtp_training(recipe_with({}, true), one, {}).depths == 0);  // a warning as well
}

TEST_CASE("mtp training: the weights of a model are counted") {
  const TestDir dir;
  for (const std::int64_t stored : {1, 2}) {
    CAPTURE(stored);
    Stack model(with_mtp(tiny_config("M*E"), stored, false), DType::f32, Device::cpu);
    randomise(model, 3);
    const auto folder = dir / cat(stored);
    save_hf_weights(folder, named_tensors(model), default_weight_files(model.setup()));
    const ModelConfig config = read_hf_config(folder);
    CHECK(config.num_nextn_predict_layers == stored);
    Recipe recipe = recipe_with(2, {});
    recipe.model->path = folder.string();
    CHECK(mtp_training(recipe, OpenedModel(recipe.model->path, config)).repeated == (stored == 1));
    recipe.model->num_nextn_predict_layers = 1;  // of two stored depths the first
    CHECK(mtp_training(recipe, OpenedModel(recipe.model->path, config)) == MtpTraining{1, false, 0.1});
    recipe.model->num_nextn_predict_layers = 2;
    const auto without_weights =
        dir / cat("config of ", stored);  // a run is planned before its model is there
    std::filesystem::create_directory(without_weights);
    std::filesystem::copy_file(folder / "config.json", without_weights / "config.json");
    recipe.model->path = without_weights.string();
    CHECK(mtp_training(recipe, OpenedModel(recipe.model->path, config)).repeated == (stored == 1));
    recipe.model->mtp_use_repeated_layer = stored != 1;
    CHECK_THROWS_AS((void)mtp_training(recipe, OpenedModel(recipe.model->path, config)), Error);
    recipe.model->mtp_use_repeated_layer.reset();
    recipe.model->path = folder.string();
    recipe.model->source = ModelSource::config;
    CHECK_THROWS_AS((void)mtp_training(recipe, OpenedModel(recipe.model->path, config)), Error);
    recipe.model->source = ModelSource::pretrained;
    ModelConfig none = config;
    none.num_nextn_predict_layers = 0;
    CHECK_THROWS_AS((void)mtp_training(recipe, OpenedModel(recipe.model->path, none)), Error);
  }
}
