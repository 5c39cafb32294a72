#include "data/peft/write_peft.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/json/json.h"
#include "data/peft/peft_directory.h"
#include "data/peft/test_adapters.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
namespace fs = std::filesystem;

constexpr ExpertForm all_forms[] = {ExpertForm::stacked, ExpertForm::stacked_peft_0_18,
                                    ExpertForm::per_expert};
const std::string q = "backbone.layers.2.mixer.q_proj", up = "backbone.layers.1.mixer.experts.up_proj",
                  down = "backbone.layers.1.mixer.experts.down_proj",
                  other_up = "backbone.layers.4.mixer.experts.up_proj";

LoraAdapters adapters_of(const std::map<std::string, LoraModule, std::less<>>& modules) {
  LoraAdapters adapters;
  for (const auto& [name, module] : modules) adapters.modules.emplace(named(name), module);
  adapters.f32 = true;
  adapters.initialisation = LoraInitialisation::kaiming;
  adapters.dropout_position = DropoutPosition::pre;
  return adapters;
}

/// Of every module with an adapter, of ranks that differ.
LoraAdapters every_module() {
  LoraAdapters adapters = adapters_of({});
  std::int64_t number = 0;
  for (const auto& [name, weight] : adaptable_weights(adapter_test_config())) {
    adapters.modules[named(name)] = {1 + number % 3, number % 4 == 0 ? 0.75 : 16, true};
    ++number;
  }
  return adapters;
}

Json config_of(const fs::path& dir) { return read_json_file(dir / "adapter_config.json"); }

/// Writes and reads again.
void check_round_trip(const ModelConfig& config, LoraAdapters adapters, ExpertForm form, DType dtype) {
  CAPTURE(static_cast<int>(form));
  const TestDir dir;
  adapters.f32 = dtype != DType::bf16;
  const std::vector<NamedTensor> tensors = random_adapters(config, adapters, dtype);
  PeftWriteOptions options;
  options.experts = form;
  options.base_model_name_or_path = "a/b";
  const FileSums sums = write_peft_directory(dir / "out", tensors, adapters, options);
  CHECK(names_in(dir / "out") ==
        std::vector<std::string>{"adapter_config.json", "adapter_model.safetensors"});
  REQUIRE(sums.size() == 2);
  for (const auto& [name, sum] : sums) CHECK(sum == sum_of_file(dir / ("out/" + name)));
  const PeftDirectory read(dir / "out", config);
  CHECK(read.adapters() == adapters);
  CHECK(read.base_model_name_or_path() == "a/b");
  CHECK(read.tensor_names().size() == tensors.size());
  for (const NamedTensor& tensor : tensors) {
    CAPTURE(tensor.name);
    CHECK_BITS(read.tensor(tensor.name), tensor.value);
  }
}
}  // namespace

TEST_CASE("write peft: every form is read again, bit for bit") {
  const ModelConfig config = adapter_test_config(), square = adapter_test_config(8);
  for (const ExpertForm form : all_forms)
    for (const DType dtype : {DType::f32, DType::bf16}) {
      check_round_trip(config, every_module(), form, dtype);
      check_round_trip(square, every_module(), form, dtype);
      for (const auto& modules : std::vector<std::map<std::string, LoraModule, std::less<>>>{
               {{q, {4, 8}}},
               {{up, {4, 8}}},
               {{down, {4, 8}}},
               {{up, {4, 8}}, {down, {2, 8}}},
               {{down, {4, 8}}, {other_up, {4, 8}}}}) {
        check_round_trip(config, adapters_of(modules), form, dtype);
        check_round_trip(square, adapters_of(modules), form, dtype);
      }
    }
}

TEST_CASE("write peft: keys and shapes in the file") {
  const LoraAdapters adapters =
      adapters_of({{q, {4, 8}}, {"lm_head", {4, 8}}, {up, {4, 8}}, {down, {2, 8}}, {other_up, {4, 8}}});
  const auto shapes = [&](ExpertForm form) {
    const TestDir dir;
    write_peft_directory(dir / "out", random_adapters(adapter_test_config(), adapters, DType::f32), adapters,
                         {.base_model_name_or_path = {}, .experts = form});
    std::map<std::string, std::string> found;
    const SafetensorsFile file(dir / "out/adapter_model.safetensors");
    CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
    for (const StoredTensor& tensor : file.tensors()) found[tensor.name] = describe(tensor);
    return found;
  };
  const std::string layer1 = "base_model.model.model.layers.1.mixer.experts",
                    layer4 = "base_model.model.model.layers.4.mixer.experts";
  const std::map<std::string, std::string> linear{
      {"base_model.model.lm_head.lora_A.weight", "F32 [4, 8]"},
      {"base_model.model.lm_head.lora_B.weight", "F32 [24, 4]"},
      {"base_model.model.model.layers.2.mixer.q_proj.lora_A.weight", "F32 [4, 8]"},
      {"base_model.model.model.layers.2.mixer.q_proj.lora_B.weight", "F32 [8, 4]"}};
  std::map<std::string, std::string> stacked = linear, old = linear, each = linear;
  stacked.insert({{layer1 + ".base_layer.lora_A.weight", "F32 [12, 8]"},
                  {layer1 + ".base_layer.lora_B.weight", "F32 [6, 12]"},
                  {layer1 + ".lora_A.weight", "F32 [6, 6]"},
                  {layer1 + ".lora_B.weight", "F32 [8, 6]"},
                  {layer4 + ".lora_A.weight", "F32 [12, 8]"},
                  {layer4 + ".lora_B.weight", "F32 [6, 12]"}});
  old.insert({{layer1 + ".base_layer.lora_A.weight", "F32 [12, 6]"},
              {layer1 + ".base_layer.lora_B.weight", "F32 [8, 12]"},
              {layer1 + ".lora_A.weight", "F32 [6, 8]"},
              {layer1 + ".lora_B.weight", "F32 [6, 6]"},
              {layer4 + ".lora_A.weight", "F32 [12, 6]"},
              {layer4 + ".lora_B.weight", "F32 [8, 12]"}});
  for (int e = 0; e < 3; ++e)
    each.insert({{cat(layer1, ".", e, ".up_proj.lora_A.weight"), "F32 [4, 8]"},
                 {cat(layer1, ".", e, ".up_proj.lora_B.weight"), "F32 [6, 4]"},
                 {cat(layer1, ".", e, ".down_proj.lora_A.weight"), "F32 [2, 6]"},
                 {cat(layer1, ".", e, ".down_proj.lora_B.weight"), "F32 [8, 2]"},
                 {cat(layer4, ".", e, ".up_proj.lora_A.weight"), "F32 [4, 8]"},
                 {cat(layer4, ".", e, ".up_proj.lora_B.weight"), "F32 [6, 4]"}});
  CHECK(shapes(ExpertForm::stacked) == stacked);
  CHECK(shapes(ExpertForm::stacked_peft_0_18) == old);
  CHECK(shapes(ExpertForm::per_expert) == each);
}

TEST_CASE("write peft: adapter_config.json") {
  const auto config = [](const LoraAdapters& adapters, ExpertForm form) {
    const TestDir dir;
    write_peft_directory(dir / "out", random_adapters(adapter_test_config(), adapters, DType::f32), adapters,
                         {.base_model_name_or_path = {}, .experts = form});
    return config_of(dir / "out");
  };
  LoraAdapters adapters = adapters_of({{q, {4, 8.5, true}}, {"lm_head", {4, 8.5, true}}, {up, {2, 3, true}}});
  adapters.dropout = 0.25;
  const Json stacked = config(adapters, ExpertForm::stacked);
  CHECK(stacked["peft_type"] == "LORA");
  CHECK(stacked["task_type"] == "CAUSAL_LM");
  CHECK(stacked["base_model_name_or_path"].is_null());
  CHECK(stacked["peft_version"] == "0.21.2");
  CHECK(stacked["r"] == 4);
  CHECK(stacked["lora_alpha"] == 8.5);
  CHECK(stacked["use_rslora"] == true);
  CHECK(dump_json(stacked["rank_pattern"], -1) == R"({"model.layers.1.mixer.experts.up_proj":2})");
  CHECK(dump_json(stacked["alpha_pattern"], -1) == R"({"model.layers.1.mixer.experts.up_proj":3})");
  CHECK(dump_json(stacked["target_modules"], -1) == R"(["lm_head","model.layers.2.mixer.q_proj"])");
  CHECK(dump_json(stacked["target_parameters"], -1) == R"(["model.layers.1.mixer.experts.up_proj"])");
  CHECK(stacked["lora_dropout"] == 0);  // which PEFT refuses beside target_parameters
  CHECK(stacked["bias"] == "none");
  CHECK(stacked["inference_mode"] == true);
  // The fields of PEFT 0.18, in its order.
  std::vector<std::string> fields, peft_fields;
  for (const auto& item : stacked.items()) fields.push_back(item.key());
  const Json golden = config_of(source_dir() / "tests/goldens/peft/experts_0_18");
  for (const auto& item : golden.items()) peft_fields.push_back(item.key());
  CHECK(fields == peft_fields);
  CHECK(config(adapters, ExpertForm::stacked_peft_0_18)["peft_version"] == "0.18.1");

  const Json each = config(adapters, ExpertForm::per_expert);
  CHECK(dump_json(each["rank_pattern"], -1) == R"({"model.layers.1.mixer.experts.[0-9]+.up_proj":2})");
  CHECK(dump_json(each["target_modules"], -1) ==
        R"(["lm_head","model.layers.1.mixer.experts.0.up_proj","model.layers.1.mixer.experts.1.up_proj",)"
        R"("model.layers.1.mixer.experts.2.up_proj","model.layers.2.mixer.q_proj"])");
  CHECK(each["target_parameters"].is_null());
  CHECK(each["lora_dropout"] == 0.25);

  // Only stacks: an empty list keeps PEFT from adapting its usual modules.
  const Json only = config(adapters_of({{up, {4, 8}}}), ExpertForm::stacked);
  CHECK(dump_json(only["target_modules"], -1) == "[]");
  CHECK(only["use_rslora"] == false);
  CHECK(only["rank_pattern"].empty());
  CHECK(dump_json(only["lora_alpha"]) == "8");

  LoraAdapters linear = adapters_of({{q, {4, 8}}});
  linear.dropout = 0.5;
  CHECK(config(linear, ExpertForm::stacked)["lora_dropout"] == 0.5);
  linear.dropout_position = DropoutPosition::post;
  CHECK(config(linear, ExpertForm::stacked)["lora_dropout"] == 0);
}

TEST_CASE(
    "write peft: the same bytes each time, other files beside, and AutoModel's settings win over PEFT's") {
  const TestDir dir;
  LoraAdapters adapters = every_module();
  adapters.dropout = 0.125;
  adapters.dropout_position = DropoutPosition::post;
  adapters.initialisation = LoraInitialisation::xavier;
  std::vector<NamedTensor> tensors = random_adapters(adapter_test_config(8), adapters, DType::f32);
  PeftWriteOptions options;
  options.other_files["automodel_peft_config.json"] =
      R"({"dropout": 0.125, "dropout_position": "post", "lora_A_init": "xavier"})";
  options.other_files["tokenizer.json"] = "{}";
  options.other_files["additional_chat_templates/tool_use.jinja"] = "x";
  const FileSums sums = write_peft_directory(dir / "a", tensors, adapters, options);
  std::reverse(tensors.begin(), tensors.end());
  CHECK(write_peft_directory(dir / "b/", tensors, adapters, options) == sums);
  CHECK(sums.size() == 5);
  CHECK(slurp(dir / "a/additional_chat_templates/tool_use.jinja") == "x");
  CHECK(files_below(dir / "a") == files_below(dir / "b"));
  // Experts as wide as the hidden states, in PEFT's present layout although AutoModel's file is there.
  const PeftDirectory read(dir / "a", adapter_test_config(8));
  CHECK(read.adapters() == adapters);
  for (const NamedTensor& tensor : tensors) CHECK_BITS(read.tensor(tensor.name), tensor.value);
}

TEST_CASE("write peft: what is refused") {
  const TestDir dir;
  const LoraAdapters adapters = adapters_of({{q, {4, 8}}, {up, {4, 8}}});
  const std::vector<NamedTensor> tensors = random_adapters(adapter_test_config(), adapters, DType::f32);
  fs::create_directories(dir / "full");
  spit(dir / "full/x", "");
  CHECK(message_of([&] {
          write_peft_directory(dir / "full", tensors, adapters);
        }).find("exists and is not empty") != std::string::npos);
  const auto broken = [&](const std::vector<NamedTensor>& given, const LoraAdapters& wanted) {
    const std::string message =
        message_of<std::logic_error>([&] { write_peft_directory(dir / "out", given, wanted); });
    CHECK(!fs::exists(dir / "out"));
    return message;
  };
  CHECK(broken({tensors.begin(), tensors.end() - 1}, adapters).find("lacks lora_A or lora_B") !=
        std::string::npos);
  CHECK(broken(tensors, adapters_of({{q, {4, 8}}})).find("is of no adapter") != std::string::npos);
  CHECK(broken(tensors, adapters_of({{q, {3, 8}}, {up, {4, 8}}})).find("of rank 3: lora_A [4, 8]") !=
        std::string::npos);
  CHECK(
      broken(tensors, adapters_of({{q, {4, 8, true}}, {up, {4, 8}}})).find("rsLoRA for some modules only") !=
      std::string::npos);
  CHECK(broken({}, LoraAdapters{}).find("no adapters to write") != std::string::npos);
  std::vector<NamedTensor> twice = tensors;
  twice.push_back(tensors[0]);
  CHECK(broken(twice, adapters).find("given twice") != std::string::npos);
  // A file that cannot be written leaves nothing.
  PeftWriteOptions options;
  options.other_files["adapter_model.safetensors/x"] = "";  // below a file
  CHECK(message_of([&] { write_peft_directory(dir / "out", tensors, adapters, options); }) != "no error");
  CHECK(names_in(dir.path()) == std::vector<std::string>{"full"});
}
