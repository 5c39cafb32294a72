#include "data/peft/peft_directory.h"

#include <doctest/doctest.h>

#include <cstring>

#include "core/log.h"
#include "data/peft/test_adapters.h"
#include "model/test_configs.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
namespace fs = std::filesystem;

using Entries = std::vector<ZerosEntry>;

/// lora_A [r, in] and lora_B [out, r] under a path of the file.
Entries pair_of(const std::string& path, std::int64_t rank, std::int64_t in, std::int64_t out) {
  const std::string prefix = "base_model.model." + path;
  return {{prefix + ".lora_A.weight", {rank, in}}, {prefix + ".lora_B.weight", {out, rank}}};
}
Entries operator+(Entries a, const Entries& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const std::string q_path = "model.layers.2.mixer.q_proj", experts_path = "model.layers.1.mixer.experts",
                  up_stack = "backbone.layers.1.mixer.experts.up_proj",
                  down_stack = "backbone.layers.1.mixer.experts.down_proj";
Entries query(std::int64_t rank = 4) { return pair_of(q_path, rank, 8, 8); }

/// A directory with zeros under these names and a config with these further members (r and lora_alpha are 4
/// and 8).
class AdapterDir {
 public:
  explicit AdapterDir(const Entries& entries, const std::string& members = "") {
    spit(dir_ / "adapter_config.json",
         cat(R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8)", members.empty() ? "" : ", ", members, "}"));
    write_zeros(dir_ / "adapter_model.safetensors", entries);
  }
  fs::path operator/(const char* name) const { return dir_ / name; }
  const fs::path& path() const { return dir_.path(); }
  PeftDirectory open(const ModelConfig& config = adapter_test_config()) const { return {path(), config}; }
  std::string refusal(const ModelConfig& config = adapter_test_config()) const {
    return message_of([&] { open(config); });
  }

 private:
  TestDir dir_;
};

void check_refused(const Entries& entries, const std::string& want, const std::string& members = "",
                   std::int64_t inner = 6) {
  const std::string message = AdapterDir(entries, members).refusal(adapter_test_config(inner));
  CAPTURE(message);
  CHECK(message.find("adapter_model.safetensors: ") != std::string::npos);
  CHECK(message.find(want) != std::string::npos);
}

/// Collects warnings while alive.
class Warnings {
 public:
  Warnings() {
    set_log_listener([this](LogLevel, const std::string& text) { texts.push_back(text); });
  }
  ~Warnings() { set_log_listener({}); }
  std::vector<std::string> texts;
};
}  // namespace

TEST_CASE("peft directory: names of modules") {
  for (const char* prefix :
       {"base_model.model.model.layers.2", "base_model.model.backbone.layers.2", "base_model.model.layers.2",
        "model.layers.2", "backbone.layers.2", "layers.2"}) {
    CAPTURE(prefix);
    const PeftDirectory peft = AdapterDir({{cat(prefix, ".mixer.q_proj.lora_A.weight"), {4, 8}},
                                           {cat(prefix, ".mixer.q_proj.lora_B.weight"), {8, 4}, DType::bf16}})
                                   .open();
    REQUIRE(peft.adapters().modules.size() == 1);
    CHECK(peft.adapters().modules.at(named("backbone.layers.2.mixer.q_proj")) == LoraModule{4, 8, false});
    CHECK(peft.adapters().f32);
    CHECK(peft.tensor_names() == std::vector<std::string>{"backbone.layers.2.mixer.q_proj.lora_A.weight",
                                                          "backbone.layers.2.mixer.q_proj.lora_B.weight"});
    CHECK(peft.tensor(peft.tensor_names()[0]).dtype() == DType::f32);
    CHECK(peft.tensor(peft.tensor_names()[1]).dtype() == DType::bf16);
    CHECK_THROWS_AS(peft.tensor("backbone.layers.2.mixer.k_proj.lora_A.weight"), std::logic_error);
    CHECK_THROWS_AS(peft.tensor("backbone.layers.2.mixer.q_proj.weight"), std::logic_error);
  }
  check_refused(query() + pair_of("backbone.layers.2.mixer.q_proj", 4, 8, 8), "are of the same adapter");
  check_refused(query() + Entries{{q_path + ".lora_A.weight", {4, 8}}}, "are the same one under two names");
}

TEST_CASE("peft directory: every linear layer can have an adapter, other tensors cannot") {
  ModelConfig config = adapter_test_config();
  config.moe.latent_size = 5;
  std::vector<std::string> names;
  for (const auto& [name, weight] : adaptable_weights(config))
    if (!name.starts_with("backbone.layers.4")) names.push_back(name);
  CHECK(names == std::vector<std::string>{
                     "backbone.layers.0.mixer.in_proj", "backbone.layers.0.mixer.out_proj",
                     "backbone.layers.1.mixer.experts.down_proj", "backbone.layers.1.mixer.experts.up_proj",
                     "backbone.layers.1.mixer.fc1_latent_proj", "backbone.layers.1.mixer.fc2_latent_proj",
                     "backbone.layers.1.mixer.shared_experts.down_proj",
                     "backbone.layers.1.mixer.shared_experts.up_proj", "backbone.layers.2.mixer.k_proj",
                     "backbone.layers.2.mixer.o_proj", "backbone.layers.2.mixer.q_proj",
                     "backbone.layers.2.mixer.v_proj", "backbone.layers.3.mixer.down_proj",
                     "backbone.layers.3.mixer.up_proj", "lm_head"});
  for (const char* path :
       {"model.embeddings", "model.layers.1.mixer.gate", "model.layers.0.mixer.conv1d", "model.layers.0.norm",
        "model.layers.9.mixer.q_proj", "model.layers.1.mixer.experts.3.up_proj", "q_proj", "",
        "model.layers.1.mixer.experts.base_layer.base_layer", "model.layers.2.mixer.q_proj.base_layer"})
    check_refused(query() + pair_of(path, 4, 8, 8), "that fit no module of the model: base_model.model.");
}

TEST_CASE("peft directory: ranks, alphas and dtypes") {
  const PeftDirectory peft =
      AdapterDir(
          query(3) + pair_of("lm_head", 4, 8, 24) + pair_of("model.layers.0.mixer.in_proj", 2, 8, 26),
          R"("rank_pattern": {"q_proj": 3, "layers.\\d.mixer.in_proj": 2}, "alpha_pattern": {"lm_head": 1.5},
                    "use_rslora": true, "lora_dropout": 0.5, "base_model_name_or_path": "a/b")")
          .open();
  const LoraAdapters& adapters = peft.adapters();
  CHECK(adapters.modules.at(named("backbone.layers.2.mixer.q_proj")) == LoraModule{3, 8, true});
  CHECK(adapters.modules.at(named("backbone.layers.0.mixer.in_proj")) == LoraModule{2, 8, true});
  CHECK(adapters.modules.at(named("lm_head")) == LoraModule{4, 1.5, true});
  CHECK(adapters.dropout == 0.5);
  CHECK(adapters.dropout_position == DropoutPosition::pre);
  CHECK(adapters.initialisation == LoraInitialisation::kaiming);
  CHECK(peft.base_model_name_or_path() == "a/b");

  check_refused(query(3),
                "1 of another shape, rank or dtype: model.layers.2.mixer.q_proj: rank 3, want 4 by "
                "adapter_config.json");
  check_refused(query(), "rank 4, want 2", R"("rank_pattern": {"q_proj": 2})");
  check_refused(pair_of(q_path, 4, 7, 8), "lora_A is F32 [4, 7], lora_B F32 [8, 4], want [r, 8] and [8, r]");
  check_refused(pair_of(q_path, 4, 8, 9), "want [r, 8] and [8, r]");
  CHECK(AdapterDir(query(3), R"("target_modules": ["model.layers.2.mixer.q_proj"])")
            .refusal()
            .find("without tensors") == std::string::npos);
  check_refused(pair_of(q_path, 0, 8, 8), "1 without elements");
  const std::string a = "base_model.model." + q_path + ".lora_A.weight",
                    b = "base_model.model." + q_path + ".lora_B.weight";
  check_refused({{a, {4, 8}}, {b, {8, 3}}}, "want [r, 8] and [8, r]");
  check_refused({{a, {4, 8, 1}}, {b, {8, 4}}}, "want [r, 8] and [8, r]");
  check_refused({{a, {32}}, {b, {8, 4}}}, "want [r, 8] and [8, r]");
  check_refused({{a, {4, 8}, DType::i32}, {b, {8, 4}}}, "is I32 [4, 8], want F32, BF16, F16 or F64");
}

TEST_CASE("peft directory: F16 is read as f32, BF16 alone as such") {
  const TestDir dir;
  spit(dir / "adapter_config.json", R"({"peft_type": "LORA", "r": 1})");
  const auto file = [&](const char* dtype, std::int64_t bytes) {
    const std::string header = cat(R"({"layers.2.mixer.q_proj.lora_A.weight":{"dtype":")", dtype,
                                   R"(","shape":[1,8],"data_offsets":[0,)", 8 * bytes,
                                   R"(]},"layers.2.mixer.q_proj.lora_B.weight":{"dtype":")", dtype,
                                   R"(","shape":[8,1],"data_offsets":[)", 8 * bytes, ",", 16 * bytes, "]}}");
    const std::uint64_t length = header.size();
    std::string text(8, '\0');
    std::memcpy(text.data(), &length, 8);
    spit(dir / "adapter_model.safetensors",
         text + header + std::string(static_cast<std::size_t>(16 * bytes), '\x3c'));
    return PeftDirectory(dir.path(), adapter_test_config());
  };
  const PeftDirectory half = file("F16", 2), brain = file("BF16", 2);
  CHECK(half.adapters().f32);
  CHECK(half.tensor(half.tensor_names()[0]).dtype() == DType::f32);
  CHECK(half.tensor(half.tensor_names()[0]).to_vector()[3] == doctest::Approx(1.0586).epsilon(1e-4));
  CHECK(!brain.adapters().f32);
  CHECK(brain.tensor(brain.tensor_names()[0]).dtype() == DType::bf16);
  CHECK(message_of([&] { file("F8_E4M3", 1); }).find("want F32, BF16, F16 or F64") != std::string::npos);
}

TEST_CASE("peft directory: which stack of experts a pair adapts, and how it lies there") {
  const std::string inner = experts_path + ".base_layer",
                    both = R"("target_parameters": ["experts.up_proj", "experts.down_proj"])",
                    up = R"("target_parameters": ["mixer.experts.up_proj"])",
                    down = R"("target_parameters": ["mixer.experts.down_proj"])",
                    version = R"(, "peft_version": "0.21.2")", old_version = R"(, "peft_version": "0.18.1")";
  const auto modules = [](const Entries& entries, const std::string& members, std::int64_t inner_width = 6) {
    std::vector<std::string> names;
    const PeftDirectory peft = AdapterDir(entries, members).open(adapter_test_config(inner_width));
    for (const auto& [name, module] : peft.adapters().modules) {
      CHECK(module.rank == 4);
      names.push_back(ModelNames().text(name));
    }
    return names;
  };
  const std::vector<std::string> only_up{up_stack}, only_down{down_stack}, two{down_stack, up_stack};
  const Entries wide = pair_of(experts_path, 12, 8, 6), narrow = pair_of(experts_path, 12, 6, 8),
                square = pair_of(experts_path, 12, 8, 8);
  // By name, and then by shape.
  CHECK(modules(wide, up) == only_up);
  CHECK(modules(narrow, up) == only_up);
  CHECK(modules(wide, down) == only_down);
  CHECK(modules(pair_of(inner, 12, 8, 6) + narrow, both) == two);
  CHECK(modules(pair_of(inner, 12, 6, 8) + wide, both) == two);
  CHECK(modules(wide, R"("target_parameters": ["model.layers.1.mixer.experts.up_proj"])") == only_up);
  // Without a name by shape and release.
  CHECK(modules(wide, R"("peft_version": "0.20.0")") == only_up);
  CHECK(modules(wide, R"("peft_version": "0.18.0")") == only_down);
  CHECK(modules(narrow, R"("peft_version": "0.20.0")") == only_down);
  check_refused(wide, "'peft_version'");
  // Of equal sizes only the release tells.
  CHECK(modules(square, up + version, 8) == only_up);
  CHECK(modules(square, up + old_version, 8) == only_up);
  check_refused(square, "want the release as 'peft_version' in adapter_config.json", up, 8);
  check_refused(square, "cannot tell which stack of experts these adapt", R"("peft_version": "0.20.0")", 8);

  check_refused(wide, "names 2 stacks of experts, but there are tensors of one", both);
  check_refused(wide, "names none of its stacks of experts", R"("target_parameters": ["other.up_proj"])");
  check_refused(pair_of(inner, 12, 8, 6), "(without those of model.layers.1.mixer.experts)", both);
  check_refused(pair_of(experts_path, 11, 8, 6), "want the matrices of 3 experts [6, 8]", up);
  check_refused(pair_of(experts_path, 12, 7, 6), "want the matrices of 3 experts [6, 8]", up);
  check_refused(pair_of(experts_path, 9, 8, 6), "model.layers.1.mixer.experts.up_proj: rank 3, want 4", up);
  check_refused(pair_of(inner, 12, 8, 6) + pair_of(experts_path, 12, 8, 7),
                "want the matrices of 3 experts [8, 6]", both);
}

TEST_CASE("peft directory: layouts of stacks give each expert its own matrices") {
  const TestDir dir;
  constexpr std::int64_t experts = 3, rank = 4, in = 8, out = 6;
  const auto number = [](std::int64_t e, std::int64_t row, std::int64_t col) {
    return static_cast<float>(100 * e + 10 * row + col);
  };
  // The matrices of expert e as its A [r, in] and B [out, r]; here at their places in the file.
  const auto write = [&](bool old) {
    const std::int64_t a_width = old ? out : in, b_width = old ? in : out;
    std::vector<float> a(experts * rank * static_cast<std::size_t>(a_width)),
        b(experts * rank * static_cast<std::size_t>(b_width));
    for (std::int64_t e = 0; e < experts; ++e)
      for (std::int64_t k = 0; k < rank; ++k) {
        for (std::int64_t i = 0; i < a_width; ++i)
          a[static_cast<std::size_t>((e * rank + k) * a_width + i)] =
              old ? -number(e, i, k) : number(e, k, i);
        for (std::int64_t o = 0; o < b_width; ++o)
          b[static_cast<std::size_t>(o * rank * experts + k * experts + e)] =
              old ? number(e, k, o) : -number(e, o, k);
      }
    std::vector<TensorSource> sources;
    sources.push_back(
        source_of(experts_path + ".lora_A.weight", Tensor::from(a, {experts * rank, a_width}), DType::f32));
    sources.push_back(
        source_of(experts_path + ".lora_B.weight", Tensor::from(b, {b_width, experts * rank}), DType::f32));
    write_safetensors(dir / "adapter_model.safetensors", std::move(sources));
    spit(dir / "adapter_config.json",
         R"({"peft_type": "LORA", "r": 4, "target_parameters": ["mixer.experts.up_proj"]})");
  };
  for (const bool old : {false, true}) {
    CAPTURE(old);
    write(old);
    const PeftDirectory peft(dir.path(), adapter_test_config());
    const Tensor a = peft.tensor(up_stack + ".lora_A.weight"), b = peft.tensor(up_stack + ".lora_B.weight");
    REQUIRE(a.shape() == Shape{experts, rank, in});
    REQUIRE(b.shape() == Shape{experts, out, rank});
    for (std::int64_t e = 0; e < experts; ++e)
      for (std::int64_t k = 0; k < rank; ++k) {
        for (std::int64_t i = 0; i < in; ++i)
          CHECK(a.data<float>()[(e * rank + k) * in + i] == number(e, k, i));
        for (std::int64_t o = 0; o < out; ++o)
          CHECK(b.data<float>()[(e * out + o) * rank + k] == -number(e, o, k));
      }
  }
}

TEST_CASE("peft directory: a stack of experts under its own name") {
  const auto stack = [](const char* name, const Shape& a, const Shape& b) {
    return Entries{{cat(experts_path, '.', name, ".lora_A.weight"), a},
                   {cat(experts_path, '.', name, ".lora_B.weight"), b}};
  };
  const AdapterDir dir(stack("up_proj", {3, 4, 8}, {3, 6, 4}) + stack("down_proj", {3, 4, 6}, {3, 8, 4}));
  std::vector<float> values(3 * 4 * 8);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  std::vector<TensorSource> sources;
  for (const ZerosEntry& entry : stack("up_proj", {3, 4, 8}, {3, 6, 4})) {
    const Tensor value = entry.shape == Shape{3, 4, 8} ? Tensor::from(values, entry.shape)
                                                       : Tensor::zeros(entry.shape, DType::f32, Device::cpu);
    sources.push_back(source_of(entry.name, value, DType::f32));
  }
  CHECK(dir.open().adapters().modules.size() == 2);
  write_safetensors(dir / "adapter_model.safetensors", std::move(sources));
  const PeftDirectory peft = dir.open();
  CHECK(peft.adapters().modules.at(named(up_stack)) == LoraModule{4, 8, false});
  CHECK_BITS(peft.tensor(up_stack + ".lora_A.weight"), Tensor::from(values, {3, 4, 8}));
  CHECK(peft.tensor(up_stack + ".lora_B.weight").shape() == Shape{3, 6, 4});
  check_refused(stack("up_proj", {3, 4, 6}, {3, 8, 4}), "want [3, r, 8] and [3, 6, r]");
  check_refused(stack("up_proj", {2, 4, 8}, {2, 6, 4}), "want [3, r, 8] and [3, 6, r]");
  check_refused(stack("up_proj", {12, 8}, {6, 12}), "want [3, r, 8] and [3, 6, r]");
  check_refused(stack("up_proj", {3, 2, 8}, {3, 6, 2}), "rank 2, want 4");
  check_refused(stack("up_proj", {3, 4, 8}, {3, 6, 4}) + pair_of(experts_path, 12, 8, 6),
                "are of the same adapter", R"("target_parameters": ["mixer.experts.up_proj"])");
}

TEST_CASE("peft directory: Tinker's form is refused by name, with what makes PEFT's of it") {
  const auto tensors = [](const std::string& path, const Shape& a, const Shape& b) {
    return Entries{{cat("base_model.model.", path, ".lora_A.weight"), a},
                   {cat("base_model.model.", path, ".lora_B.weight"), b}};
  };
  const std::string form =
      " in the form of Tinker, which has other names and factors that experts share; "
      "tinker_cookbook.weights.build_lora_adapter() makes PEFT's form of them, which is read: ";
  const Entries experts = tensors(experts_path + ".w1", {1, 4, 8}, {3, 6, 4}) +
                          tensors(experts_path + ".w2", {3, 4, 6}, {1, 8, 4}) +
                          tensors(experts_path + ".w3", {0}, {0});
  check_refused(query() + experts,
                cat("2", form, experts_path, ".w1: lora_A is F32 [1, 4, 8], lora_B F32 [3, 6, 4], ",
                    experts_path, ".w2: lora_A is F32 [3, 4, 6], lora_B F32 [1, 8, 4]"));
  const std::string mamba = "backbone.layers.0.mixer";
  check_refused(tensors(mamba + ".gate_proj", {4, 8}, {8, 4}) + tensors(mamba + ".x_proj", {4, 8}, {8, 4}),
                cat("2", form, mamba, ".gate_proj: "));
  check_refused(tensors("model.unembed_tokens", {4, 8}, {16, 4}), cat("1", form, "model.unembed_tokens: "));
  check_refused(tensors(experts_path + ".up_proj", {1, 4, 8}, {3, 6, 4}),
                cat("1", form, experts_path,
                    ".up_proj: lora_A is F32 [1, 4, 8], lora_B F32 [3, 6, 4]: a factor "
                    "that all experts share"));
  // The same words elsewhere.
  check_refused(tensors("model.layers.2.mixer.gate_proj", {4, 8}, {8, 4}), "that fit no module of the model");
}

TEST_CASE("peft directory: names as they are in memory, of wrappers and of the language part of a model") {
  for (const auto& [a, b] : std::vector<std::pair<std::string, std::string>>{
           {"base_model.model.model.layers.2.mixer.q_proj.lora_A.default.weight",
            "base_model.model.model.layers.2.mixer.q_proj.lora_B.default.weight"},
           {"base_model.model.model.layers.2.mixer.q_proj.lora_A.mine.weight",
            "base_model.model.model.layers.2.mixer.q_proj.lora_B.weight"},
           {"module.base_model.model._orig_mod.model.layers.2._orig_mod.mixer.q_proj.lora_A.weight",
            "_orig_mod.base_model.model.model.layers.2.mixer.q_proj.lora_B.default.weight"},
           {"base_model.model.language_model.backbone.layers.2.mixer.q_proj.lora_A.weight",
            "base_model.model.language_model.backbone.layers.2.mixer.q_proj.lora_B.weight"},
           {"base_model.model.model.language_model.layers.2.mixer.q_proj.lora_A.weight",
            "base_model.model.model.language_model.layers.2.mixer.q_proj.lora_B.weight"}}) {
    CAPTURE(a);
    const std::string message = AdapterDir({{a, {4, 8}}, {b, {8, 4}}}).refusal();
    CAPTURE(message);
    CHECK(message == "no error");
  }
  CHECK(AdapterDir({{"_orig_mod.base_model.model.layers.2.mixer.q_proj.lora_A.weight", {4, 8}},
                    {"_orig_mod.base_model.model.layers.2.mixer.q_proj.lora_B.weight", {8, 4}}})
            .open()
            .adapters()
            .modules.contains(named("backbone.layers.2.mixer.q_proj")));
  check_refused(query() + Entries{{q_path + ".lora_A.other.weight", {4, 8}}},
                "are the same one under two names");
  check_refused(query() + Entries{{q_path + ".lora_A.a.b.weight", {4, 8}}},
                "that fit no module of the model");
}

TEST_CASE("peft directory: pairs without elements") {
  const std::string gate = "base_model.model." + experts_path + ".w3";
  const Entries placeholder{{gate + ".lora_A.weight", {0}}, {gate + ".lora_B.weight", {0}}};
  {
    const Warnings warnings;
    CHECK(AdapterDir(query() + placeholder).open().adapters().modules.size() == 1);
    REQUIRE(warnings.texts.size() == 1);
    CHECK(warnings.texts[0].find(
              "1 without elements that fit no module of the model: model.layers.1.mixer.experts.w3") !=
          std::string::npos);
  }
  // Saved while the elements lay elsewhere: nothing is trained of such a module.
  const std::string k = "base_model.model.model.layers.2.mixer.k_proj";
  check_refused(query() + Entries{{k + ".lora_A.weight", {0}}, {k + ".lora_B.weight", {0}}},
                "1 without elements (was the adapter saved while its parts lay on several ranks?): "
                "model.layers.2.mixer.k_proj: lora_A is F32 [0], lora_B F32 [0]");
}

TEST_CASE("peft directory: a pair for each expert") {
  const auto expert = [](int e, std::int64_t rank = 4, const char* stack = "up_proj") {
    return pair_of(cat(experts_path, ".", e, ".", stack), rank, 8, 6);
  };
  const PeftDirectory peft = AdapterDir(expert(2) + expert(0) + expert(1)).open();
  CHECK(peft.adapters().modules.at(named(up_stack)) == LoraModule{4, 8, false});
  CHECK(peft.tensor(up_stack + ".lora_A.weight").shape() == Shape{3, 4, 8});
  CHECK(peft.tensor(up_stack + ".lora_B.weight").shape() == Shape{3, 6, 4});

  check_refused(expert(0) + expert(2), "1 without tensors: model.layers.1.mixer.experts.1.up_proj");
  check_refused(expert(0) + expert(1) + expert(2) + expert(3), "that fit no module of the model");
  check_refused(expert(0) + expert(1, 4, "down_proj") + expert(2), "want [r, 6] and [8, r]");
  check_refused(expert(0) + expert(1, 2) + expert(2), "another rank, alpha or dtype",
                R"("rank_pattern": {"experts.1.up_proj": 2})");
  check_refused(expert(0) + expert(1) + expert(2), "another rank, alpha or dtype",
                R"("alpha_pattern": {"experts.1.up_proj": 2})");
  Entries other_dtype = expert(0) + expert(1) + expert(2);
  other_dtype[3].dtype = DType::bf16;
  check_refused(other_dtype, "another rank, alpha or dtype");
  check_refused(expert(0) + expert(1) + expert(2) + pair_of(experts_path, 12, 8, 6),
                "are of the same adapter", R"("target_parameters": ["mixer.experts.up_proj"])");
  check_refused(expert(1) + pair_of("backbone.layers.1.mixer.experts.1.up_proj", 4, 8, 6),
                "are of the same adapter");
}

TEST_CASE("peft directory: a directory as AutoModel writes it") {
  const AdapterDir dir(
      query() + pair_of(experts_path + ".base_layer", 12, 8, 8) + pair_of(experts_path, 12, 8, 8),
      R"("task_type": "CAUSAL_LM", "use_dora": false, "bias": "none", "base_model_name_or_path": "a/b",
      "target_modules": ["model.layers.1.mixer.experts.down_proj", "model.layers.1.mixer.experts.up_proj",
                         "model.layers.2.mixer.q_proj"],
      "target_parameters": ["mixer.experts.up_proj", "mixer.experts.down_proj"])");
  // Of equal sizes AutoModel's file tells the layout: lora_A has the columns of B, lora_B the rows of A.
  CHECK(dir.refusal(adapter_test_config(8)).find("'peft_version'") != std::string::npos);
  spit(dir / "automodel_peft_config.json",
       R"({"dropout": 0.0, "dropout_position": "post", "lora_A_init": "xavier", "lora_dtype": null,
      "match_all_linear": false, "moe_rank_scaling": false, "exclude_modules": [], "use_dora": false, "use_triton": true})");
  std::vector<TensorSource> sources;
  for (const char* module : {".mixer.experts.base_layer", ".mixer.experts"})
    for (const char factor : {'A', 'B'}) {
      std::vector<float> values(12 * 8);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
      sources.push_back(source_of(cat("base_model.model.model.layers.1", module, ".lora_", factor, ".weight"),
                                  Tensor::from(values, factor == 'A' ? Shape{12, 8} : Shape{8, 12}),
                                  DType::f32));
    }
  for (const ZerosEntry& entry : query())
    sources.push_back(
        source_of(entry.name, Tensor::zeros(entry.shape, entry.dtype, Device::cpu), entry.dtype));
  write_safetensors(dir / "adapter_model.safetensors", std::move(sources));
  const PeftDirectory peft = dir.open(adapter_test_config(8));
  CHECK(peft.adapters().initialisation == LoraInitialisation::xavier);
  CHECK(peft.adapters().modules.size() == 3);
  for (const std::string& stack : {up_stack, down_stack}) {
    const Tensor a = peft.tensor(stack + ".lora_A.weight"), b = peft.tensor(stack + ".lora_B.weight");
    for (std::int64_t e = 0; e < 3; ++e)
      for (std::int64_t k = 0; k < 4; ++k)
        for (std::int64_t i = 0; i < 8; ++i) {
          CHECK(a.data<float>()[(e * 4 + k) * 8 + i] == static_cast<float>(i * 12 + k * 3 + e));
          CHECK(b.data<float>()[(e * 8 + i) * 4 + k] == static_cast<float>((e * 4 + k) * 8 + i));
        }
  }
}

TEST_CASE("peft directory: AutoModel's smaller ranks of experts") {
  const Entries entries = query() + pair_of(experts_path, 6, 6, 8);  // rank 4 / 2 experts per token
  const std::string members = R"("target_parameters": ["mixer.experts.up_proj"])";
  const AdapterDir dir(entries, members);
  CHECK(dir.refusal().find("model.layers.1.mixer.experts.up_proj: rank 2, want 4 by adapter_config.json") !=
        std::string::npos);
  spit(dir / "automodel_peft_config.json", R"({"moe_rank_scaling": false})");
  CHECK(dir.refusal().find("rank 2, want 4") != std::string::npos);
  spit(dir / "automodel_peft_config.json", R"({"moe_rank_scaling": true, "dropout": 0.25})");
  const PeftDirectory peft = dir.open();
  CHECK(peft.adapters().modules.at(named(up_stack)) == LoraModule{2, 8, false});
  CHECK(peft.adapters().modules.at(named(up_stack)).scale() == 4);
  CHECK(peft.adapters().modules.at(named("backbone.layers.2.mixer.q_proj")).scale() == 2);
  CHECK(peft.adapters().dropout == 0.25);
  CHECK(peft.adapters().dropout_position == DropoutPosition::post);
  ModelConfig pruned = adapter_test_config();
  own_config(pruned, 1).moe.num_experts_per_tok = 1;
  CHECK(dir.refusal(pruned).find("rank 2, want 4") != std::string::npos);
  const AdapterDir linear(query(2));
  spit(linear / "automodel_peft_config.json", R"({"moe_rank_scaling": true})");
  CHECK(linear.refusal().find("rank 2, want 4") != std::string::npos);
}

TEST_CASE("peft directory: tensors of other kinds are refused by name") {
  const auto with = [](const char* name) { return query() + Entries{{cat("base_model.model.", name), {8}}}; };
  check_refused(with("model.layers.2.mixer.q_proj.lora_magnitude_vector"),
                "a magnitude of DoRA, which is not supported");
  check_refused(with("model.embeddings.lora_embedding_A"), "an adapter of an embedding");
  check_refused(with("model.layers.2.mixer.q_proj.lora_B.bias"), "a bias of an adapter (lora_bias)");
  check_refused(with("model.layers.2.mixer.q_proj.bias"), "a trained bias");
  check_refused(with("model.norm_f.weight"), "a trained copy of a module (modules_to_save)",
                R"("modules_to_save": ["norm_f"])");
  check_refused(with("lm_head.weight"), "a trained copy of a module (modules_to_save)",
                R"("modules_to_save": ["lm_head"])");
  check_refused(with("model.norm_f.weight"),
                "1 that fit no module of the model: base_model.model.model.norm_f.weight");
  CHECK(AdapterDir(query(), R"("modules_to_save": ["norm_f"])").refusal() == "no error");
}

TEST_CASE("peft directory: files that would be read without effect are refused") {
  check_refused({}, "want tensors of an adapter of this model, got none");
  const std::string a = "base_model.model." + q_path + ".lora_A.weight",
                    b = "base_model.model." + q_path + ".lora_B.weight";
  check_refused({{a, {4, 8}}}, "1 without the other of lora_A and lora_B: " + a);
  check_refused({{b, {8, 4}}}, "1 without the other of lora_A and lora_B: " + b);
  Entries foreign;
  for (int i = 0; i < 6; ++i) foreign = foreign + pair_of(cat("model.decoder.", i, ".wq"), 4, 8, 8);
  check_refused(foreign,
                "12 that fit no module of the model: base_model.model.model.decoder.0.wq.lora_A.weight, ");
  check_refused(foreign, "decoder.4.wq.lora_B.weight, ...");
  // Modules that the config names by their whole paths.
  check_refused(
      query(), "2 without tensors: model.layers.2.mixer.k_proj, lm_head",
      R"("target_modules": ["model.layers.2.mixer.q_proj", "model.layers.2.mixer.k_proj", "lm_head", "v_proj"])");
  check_refused(
      query(), "1 without tensors: model.layers.1.mixer.experts.0.up_proj",
      R"("target_modules": ["model.layers.1.mixer.experts.0.up_proj", "model.layers.1.mixer.experts.0.gate_proj"])");
  check_refused(
      query(), "1 without tensors: backbone.layers.1.mixer.experts.up_proj",
      R"("target_parameters": ["backbone.layers.1.mixer.experts.up_proj", "mixer.experts.down_proj"])");
  CHECK(AdapterDir(query(), R"("target_modules": ["lm_head"], "exclude_modules": ["lm_head"])").refusal() ==
        "no error");
  CHECK(AdapterDir(query(), R"("target_modules": ".*(q_proj|lm_head).*")").refusal() == "no error");
}

TEST_CASE(
    "peft directory: tensors of multi-token prediction and copies of base weights are not read, with a "
    "warning") {
  const AdapterDir dir(query() + pair_of("mtp.layers.0.mixer.q_proj", 4, 8, 8) +
                       pair_of("mtp.layers.0.eh_proj", 4, 16, 8) +
                       Entries{{"base_model.model.mtp.layers.1.eh_proj.lora_A.weight", {4, 8}},
                               {"base_model.model." + q_path + ".base_layer.weight", {8, 8}},
                               {"base_model.model." + q_path + ".base_layer.bias", {8}}});
  Warnings warnings;
  CHECK(dir.open().adapters().modules.size() == 1);
  REQUIRE(warnings.texts.size() == 2);
  CHECK(warnings.texts[0].find("5 tensors of multi-token prediction (mtp.) not read") != std::string::npos);
  CHECK(warnings.texts[1].find("2 copies of base weights not read") != std::string::npos);
  check_refused(pair_of("mtp.layers.0.mixer.q_proj", 4, 8, 8), "got none");
  check_refused(query() + Entries{{"base_model.model." + q_path + ".base_layer.weight", {8, 9}}},
                "base_layer.weight is F32 [8, 9], want [8, 8]");
  check_refused(query() + Entries{{"base_model.model." + q_path + ".base_layer.bias", {9}}},
                "base_layer.bias is F32 [9], want [8]");
  check_refused(query() + Entries{{"base_model.model.lm_head.base_layer.weight", {24, 8}}},
                "that fit no module");
}

TEST_CASE("peft directory: missing and damaged files") {
  const TestDir dir;
  const auto refusal = [&] {
    return message_of([&] { PeftDirectory peft(dir.path(), adapter_test_config()); });
  };
  CHECK(message_of([&] {
          PeftDirectory peft(dir / "none", adapter_test_config());
        }).find("none: want a directory with an adapter") != std::string::npos);
  CHECK(refusal().find("adapter_config.json") != std::string::npos);
  spit(dir / "adapter_config.json", R"({"peft_type": "LORA"})");
  CHECK(refusal().find("adapter_model.safetensors") != std::string::npos);
  spit(dir / "adapter_model.bin", "pickle");
  CHECK(refusal().find("adapter_model.bin: want adapter_model.safetensors instead: reading a pickle file "
                       "runs code from it") != std::string::npos);
  spit(dir / "adapter_model.safetensors", "short");
  CHECK(refusal().find("adapter_model.safetensors: ") != std::string::npos);
}
