#include <doctest/doctest.h>

#include "train/recipe/test_recipes.h"

using namespace nemocube;
using namespace nemocube::testing;

// What the sections of a training run want of each other.

TEST_CASE("files that a recipe names and that are not there are problems of the recipe") {
  const std::string message = error_of(
      with("tokenizer: no/folder\nvalidation_dataset: {_target_: squad, path: a.json}\nvalidation_dataset_b: "
           "{_target_: squad, dataset_name: squad}\nseeds: 3\n"),
      {"dataset.path=/gone"}, RecipeUse::train);
  CAPTURE(message);
  CHECK(message.starts_with("r.yaml: 5 problems:\n"));
  for (const char* part : {"unknown key 'seeds'", "--set dataset.path: '/gone' does not exist",
                           "r.yaml:6: validation_dataset.path: 'a.json' does not exist in /",
                           "(relative paths of a recipe start from",
                           "r.yaml:5: tokenizer: want a folder with a tokenizer.json, or "
                           "that file; 'no/folder'",
                           "ownload"})
    CHECK_MESSAGE(contains(message, part), part);
}

TEST_CASE("training wants model, dataset, optimizer and whole batches") {
  CHECK(parse(with(""), {}, RecipeUse::train).model->path == model_folder);
  const auto without = [](const std::string& key) {
    return error_of(with(""), {cat(key, "=")}, RecipeUse::train);
  };
  CHECK(without("model") == "r.yaml: the section 'model' is missing");
  CHECK(without("dataset") == "r.yaml: the section 'dataset' is missing");
  CHECK(without("optimizer") == "r.yaml: the section 'optimizer' is missing");
  CHECK(error_of(with(""), {"step_scheduler.local_batch_size=3"}, RecipeUse::train) ==
        "r.yaml: step_scheduler.global_batch_size = 4 must be a multiple of local_batch_size = 3; the "
        "nearest that "
        "is: 3");
  CHECK(contains(error_of(with(""), {"dataloader.batch_size=1"}, RecipeUse::train),
                 "dataloader.batch_size: is 1, which differs from step_scheduler.local_batch_size = 2"));
  CHECK(contains(error_of(with(""), {"checkpoint.best_metric_key=x"}, RecipeUse::train),
                 "validation_dataset_x"));
  CHECK(contains(error_of(with(""), {}, RecipeUse::evaluate), "the section 'validation_dataset' is missing"));
  const std::string hub =
      error_of(with(""), {"model.pretrained_model_name_or_path=nvidia/Some-Model-4B"}, RecipeUse::train);
  CHECK(contains(hub, "is not a folder here"));
  CHECK(contains(hub, "hf download nvidia/Some-Model-4B"));
  CHECK(contains(error_of(with(""), {"model.pretrained_model_name_or_path=./a/b"}, RecipeUse::train),
                 "does not exist"));
}

TEST_CASE("gradient accumulation divides exactly") {
  Recipe r;
  r.file = "r.yaml";
  StepSchedulerSection& s = r.step_scheduler;
  s.global_batch_size = 256;
  s.local_batch_size = 64;
  CHECK(grad_accumulation_steps(r, 1) == 4);
  CHECK(grad_accumulation_steps(r, 2) == 2);
  CHECK_THROWS_WITH(
      grad_accumulation_steps(r, 3),
      "r.yaml: step_scheduler.global_batch_size = 256 must be a multiple of local_batch_size = 64 x 3 "
      "data-parallel ranks; the nearest that is: 192");
  s.local_batch_size = 512;
  CHECK_THROWS_AS(grad_accumulation_steps(r, 1), Error);
}

TEST_CASE("models from weights and from configurations alone") {
  const auto law = [](const std::string& model) { return parse(model).model->initialisation; };
  CHECK(law("dataset: {_target_: mock}\nmodel: {config: x}") == Initialisation::hf);
  CHECK(law("dataset: {_target_: mock}\nmodel: {config: x, initialisation: megatron}") ==
        Initialisation::megatron);
  CHECK(parse("dataset: {_target_: mock}\nmodel: {_target_: a.B.from_config, config: {_target_: "
              "c.D.from_pretrained, "
              "pretrained_model_name_or_path: x, trust_remote_code: false}}")
            .model->source == ModelSource::config);
  const Recipe r = parse("dataset: {_target_: mock}\nmodel: {config: x/config.json, torch_dtype: bfloat16}");
  CHECK(r.model->source == ModelSource::config);
  CHECK(r.model->path == "x/config.json");
  CHECK(r.model->dtype == DType::bf16);
  CHECK(
      contains(error_with("model: {_target_: a.from_pretrained, config: {pretrained_model_name_or_path: x}}"),
               "wants pretrained_model_name_or_path"));
  CHECK(contains(error_with("model: {pretrained_model_name_or_path: y, config: x}"), "want one of them"));
  CHECK(contains(error_with("model: {config: x, initialisation: xavier}"),
                 "model.initialisation: want one of hf, megatron, found 'xavier'"));
  CHECK(contains(error_with("model: {pretrained_model_name_or_path: x, initialisation: hf}"),
                 "model.initialisation: from_pretrained reads its weights"));
}

TEST_CASE("rows are shuffled unless they are tokens or the recipe says otherwise") {
  const auto shuffled = [](const std::string& kind, const std::string& loader = "") {
    const Recipe r = parse(cat("dataset: {_target_: ", kind, "}\ndataloader: {", loader, "}\n"));
    CHECK(parse(describe(r)).dataloader.shuffle == r.dataloader.shuffle);
    return r.dataloader.shuffle;
  };
  CHECK(shuffled("mock"));
  CHECK(shuffled("squad"));
  CHECK_FALSE(shuffled("mock", "shuffle: false"));
  CHECK_FALSE(shuffled("tokens"));
  CHECK_FALSE(shuffled("tokens", "drop_last: true"));
  CHECK(shuffled("tokens", "shuffle: true"));
  CHECK_FALSE(parse("dataset: {_target_: tokens}").dataloader.shuffle);
}

TEST_CASE("several validation sets, by suffix") {
  const Recipe r = parse(
      "validation_dataset: {_target_: mock}\nvalidation_dataset_chat: {_target_: messages, "
      "path_or_dataset_id: c.jsonl}\nvalidation_dataset_off: none\n");
  CHECK(r.validation_datasets.size() == 2);
  CHECK(r.validation_datasets.at("default").kind == DatasetKind::mock);
  CHECK(r.validation_datasets.at("chat").path == FileList{{"c.jsonl"}});
  const Recipe list = parse("dataset: {_target_: messages, path_or_dataset_id: [a.jsonl, b]}");
  CHECK(list.dataset->path == FileList{{"a.jsonl", "b"}});
  CHECK(parse(describe(list)).dataset->path == list.dataset->path);
  CHECK(parse(describe(parse("dataset: {_target_: messages, path: a}"))).dataset->path == FileList{{"a"}});
  CHECK(parse(describe(parse("dataset: {_target_: squad}"))).dataset->path == FileList{});
  CHECK(contains(error_with("validation_dataset: {_target_: tokens, path: [a, b]}"),
                 "is a list of 2; want one file or folder, or the class messages or column_mapped"));
  for (const char* path : {"[]", "['']", "[a, '']", "{b: c}"})
    CHECK(contains(error_with(cat("validation_dataset: {_target_: messages, path: ", path, "}")),
                   "want text, or a list of texts"));
  CHECK(contains(error_with("validation_dataset_a/b: {_target_: mock}"), "becomes a file name"));
  CHECK(contains(error_with("validation_dataset_a: {_target_: mock}\nvalidation_dataset-a: {_target_: mock}"),
                 "a second section named 'a'"));
}

TEST_CASE("neftune: a number or a section; false, null and 0 are none") {
  const auto alpha = [](const std::string& value) { return parse(with("neftune: " + value)).neftune.alpha; };
  CHECK(parse(with("")).neftune.alpha == 0);
  for (const char* none : {"false", "null", "0", "{}", "{noise_alpha: 0}", "{noise_alpha: null}"})
    CHECK(alpha(none) == 0);
  for (const char* some : {"5", "5.0", "{noise_alpha: 5.0}"}) CHECK(alpha(some) == 5);
  CHECK(parse(with(""), {"neftune.noise_alpha=2.5"}).neftune.alpha == 2.5);
  CHECK(parse(describe(parse(with("neftune: {noise_alpha: 0.5}")))).neftune.alpha == 0.5);
  for (const char* wrong : {"-1", ".inf", ".nan", "true", "much"})
    CHECK(error_with(cat("neftune: ", wrong)) ==
          cat("r.yaml:2: neftune: want a nonnegative number, found '", wrong, "'"));
  CHECK(error_with("neftune: {noise_alpha: -5}") ==
        "r.yaml:2: neftune.noise_alpha: want a nonnegative number, found '-5'");
  CHECK(contains(error_with("neftune: {noise_alfa: 5}"), "noise_alpha"));
}

TEST_CASE("early_stopping: needs patience, a validation set and its interval") {
  const auto error = [](const std::string& section, const std::string& sets, const std::string& scheduler) {
    return error_of(with(cat("early_stopping: ", section, "\n", sets), scheduler), {}, RecipeUse::train);
  };
  const std::string one = cat("validation_dataset: {_target_: tokens, path: ", model_folder,
                              "/tokens.safetensors}\n"),
                    other = cat("validation_dataset_b: {_target_: tokens, path: ", model_folder,
                                "/tokens.safetensors}\n"),
                    steps = "max_steps: 5, val_every_steps: 2";
  CHECK(error("{patience: 2}", one, steps) == "no error");
  CHECK(error("null", "", "max_steps: 5") == "no error");
  CHECK(error("{patience: 2, min_delta: 0.1, metric: b}", other, steps) == "no error");
  CHECK(contains(error("{patience: 2}", "", steps),
                 "early_stopping: needs a validation loss; want a section validation_dataset as well"));
  CHECK(contains(error("{patience: 2}", one, "max_steps: 5"),
                 "early_stopping: counts validations; want step_scheduler.val_every_steps as well"));
  CHECK(contains(error("{min_delta: 1}", one, steps), "early_stopping.patience: is missing"));
  CHECK(contains(error("{patience: 0}", one, steps),
                 "early_stopping.patience: want a positive integer, found '0'"));
  for (const char* delta : {"-0.1", ".nan", ".inf"})
    CHECK(contains(error(cat("{patience: 1, min_delta: ", delta, "}"), one, steps),
                   "early_stopping.min_delta: want a nonnegative number"));
  CHECK(
      contains(error("{patience: 1, metric: c}", one + other, steps),
               "early_stopping.metric: is c, and there is no validation set of that name; want b, default"));
  CHECK(contains(error("{patience: 1}", other, steps), "there is no validation set of that name; want b"));
  CHECK(contains(error("{patients: 1}", one, steps), "patience"));
  CHECK(parse(with("")).early_stopping.has_value() == false);
  const Recipe r = parse(describe(parse(with("early_stopping: {patience: 3, min_delta: 0.5, metric: x}"))));
  CHECK(r.early_stopping->patience == 3);
  CHECK(r.early_stopping->min_delta == 0.5);
  CHECK(r.early_stopping->metric == "x");
}

TEST_CASE("a schedule needs three sections and a length") {
  const std::string three = "optimizer: {lr: 1e-3}\nlr_scheduler: {}\nstep_scheduler: {";
  CHECK(parse(three + "max_steps: 5}", {}, RecipeUse::schedule).step_scheduler.max_steps == 5);
  CHECK(contains(error_of(three + "num_epochs: 2}", {}, RecipeUse::schedule),
                 "step_scheduler.max_steps: is missing"));
  CHECK(
      parse(three +
                "max_steps: 5}\npeft: {dim: 8}\ndataset: {_target_: x.HellaSwag}\nvalidation_dataset_x: 3\n",
            {}, RecipeUse::schedule)
          .optimizer->lr == 1e-3);
}
