#include "data/hf/hf_weights.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstring>
#include <functional>

#include "core/log.h"
#include "core/rng.h"
#include "data/hf/hf_config.h"
#include "data/hf/test_config.h"
#include "data/json/test_dir.h"
#include "data/safetensors/writer.h"
#include "tests/support/compare.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
namespace fs = std::filesystem;

ModelConfig small() { return small_test_config("ME*-"); }

std::vector<NamedTensor> empty_model(const ModelConfig& config, DType dtype = DType::f32) {
  std::vector<NamedTensor> tensors;
  for (const TensorSpec& spec : tensor_specs(config))
    tensors.push_back({.name = spec.name,
                       .value = Tensor::zeros(spec.shape, spec.keep_f32 ? DType::f32 : dtype, Device::cpu),
                       .keep_f32 = spec.keep_f32});
  return tensors;
}

std::vector<NamedTensor> random_model(const ModelConfig& config) {
  std::vector<NamedTensor> tensors = empty_model(config);
  for (const NamedTensor& t : tensors) fill_normal(t.value, RandomStream(3, t.name), 0, 1);
  return tensors;
}

void check_same(const std::vector<NamedTensor>& got, const std::vector<NamedTensor>& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(want[i].name);
    CHECK(got[i].name == want[i].name);
    CHECK_BITS(got[i].value, want[i].value);
  }
}

/// A directory with `model` under its names in files of the default form, passed through `change`.
template <class Change>
void write_model(const fs::path& dir, const std::vector<NamedTensor>& model, const ModelConfig& config,
                 Change&& change) {
  fs::create_directories(dir);
  std::vector<NamedTensor> named = to_file_names(model, default_weight_files(config));
  change(named);
  std::vector<TensorSource> sources;
  for (const NamedTensor& t : named) sources.push_back(source_of(t.name, t.value, t.value.dtype()));
  write_safetensors(dir / single_file_name, std::move(sources));
}

template <class Tensors>
auto& find(Tensors& tensors, const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &NamedTensor::name);
  REQUIRE_MESSAGE(found != tensors.end(), name);
  return *found;
}
}  // namespace

TEST_CASE("hf weights: a model with a tied head has no tensor of the head") {
  const TestDir dir;
  ModelConfig config = small();
  config.tie_word_embeddings = true;
  const std::vector<NamedTensor> model = random_model(config);
  save_hf_weights(dir / "m", model, default_weight_files(config));
  const HfWeights weights(dir / "m");
  CHECK(weights.has("backbone.embeddings.weight"));
  CHECK_FALSE(weights.has("lm_head.weight"));
  const std::vector<NamedTensor> back = empty_model(config);
  load_hf_weights(weights, back);
  check_same(back, model);
}

TEST_CASE("hf weights: frequencies of rotary embeddings in older files are not read and not written") {
  const TestDir dir;
  const std::vector<NamedTensor> model = random_model(small());
  write_model(dir / "m", model, small(), [](std::vector<NamedTensor>& named) {
    for (const char* name : {"model.layers.2.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"})
      named.push_back({name, Tensor::from<float>({2}, {1})});
  });
  const std::vector<NamedTensor> back = empty_model(small());
  const WeightFiles files = load_hf_weights(dir / "m", back);
  check_same(back, model);
  CHECK(files.carried.empty());
  write_model(dir / "strange", model, small(), [](std::vector<NamedTensor>& named) {
    named.push_back({"model.other_rotary_emb.inv_freq", Tensor::from<float>({2}, {1})});
  });
  CHECK_THROWS_WITH_AS(load_hf_weights(dir / "strange", back), doctest::Contains("1 unexpected"), Error);
}

TEST_CASE("hf weights: names") {
  const auto canonical = [](const char* name) {
    const CanonicalTensor place = canonical_tensor(name, usual_names);
    return place.part.expert < 0 ? place.name : cat(place.name, " #", place.part.expert);
  };
  CHECK(canonical("model.layers.0.norm.weight") == "backbone.layers.0.norm.weight");
  CHECK(canonical("backbone.embedding.weight") == "backbone.embeddings.weight");
  CHECK(canonical("model.embedding.weight") == "backbone.embeddings.weight");
  CHECK(canonical("lm_head.weight") == "lm_head.weight");
  CHECK(canonical("model.layers.1.mixer.experts.12.up_proj.weight") ==
        "backbone.layers.1.mixer.experts.up_proj #12");
  CHECK(canonical("backbone.layers.1.mixer.experts.0.down_proj.weight") ==
        "backbone.layers.1.mixer.experts.down_proj #0");
  CHECK(canonical("mtp.layers.1.mixer.experts.3.up_proj.weight") == "mtp.layers.1.mixer.experts.up_proj #3");
  CHECK(canonical("model.layers.1.mixer.experts.up_proj") == "backbone.layers.1.mixer.experts.up_proj");
  for (const char* odd : {"x.mixer.experts.01.up_proj.weight", "x.mixer.experts.-1.up_proj.weight",
                          "x.mixer.experts.-0.up_proj.weight", "x.mixer.experts..up_proj.weight",
                          "x.mixer.experts.1.up_proj.bias", "x.mixer.experts.1.gate_proj.weight",
                          "x.mixer.experts.12345678901234567890.up_proj.weight", "x.mixer.experts."})
    CHECK(canonical(odd) == odd);
  CHECK(expert_tensor_names("backbone.layers.1.mixer.experts.up_proj", "12") ==
        std::vector<std::string>{"backbone.layers.1.mixer.experts.12.up_proj.weight"});
}

TEST_CASE("hf weights: names with prefixes of wrappers, and of language models among other parts") {
  const auto canonical = [](const std::string& name) { return canonical_tensor(name, usual_names).name; };
  const std::string norm = "backbone.layers.0.norm.weight";
  for (const char* name :
       {"module.backbone.layers.0.norm.weight", "_orig_mod.backbone.layers.0.norm.weight",
        "module.module._orig_mod.model.layers.0.norm.weight", "_orig_mod.module.model.layers.0.norm.weight",
        "model.layers.0._orig_mod.norm.weight",
        "model._fsdp_wrapped_module.layers.0._checkpoint_wrapped_module.norm.weight", "layers.0.norm.weight",
        "language_model.backbone.layers.0.norm.weight", "language_model.layers.0.norm.weight",
        "model.language_model.layers.0.norm.weight", "module.model.language_model.layers.0.norm.weight"})
    CHECK_MESSAGE(canonical(name) == norm, name);
  CHECK(canonical("module.lm_head.weight") == "lm_head.weight");
  CHECK(canonical("language_model.lm_head.weight") == "lm_head.weight");
  CHECK(canonical("language_model.embeddings.weight") == "backbone.embeddings.weight");
  CHECK(canonical("norm_f.weight") == "backbone.norm_f.weight");
  for (const char* other : {"my_module.x.weight", "x.module.y", "x_orig_mod.y"})
    CHECK(canonical(other) == other);

  const TestDir dir;
  const std::vector<NamedTensor> model = random_model(small());
  const auto renamed = [&](const char* folder, const std::string& config,
                           const std::vector<std::string>& others,
                           const std::function<std::string(std::string)>& name) {
    write_model(dir / folder, model, small(), [&](std::vector<NamedTensor>& tensors) {
      for (NamedTensor& t : tensors) t.name = name(t.name);
      for (const std::string& other : others) tensors.push_back({other, Tensor::from<float>({5}, {1})});
    });
    spit(dir / folder / "config.json", config);
    const std::vector<NamedTensor> back = empty_model(small());
    const WeightFiles files = load_hf_weights(dir / folder, back);
    check_same(back, model);
    save_hf_weights(dir / cat(folder, "_saved").c_str(), back, files);
    return std::make_pair(files, dir / cat(folder, "_saved").c_str());
  };
  const std::string plain = make_hf_config(small()).text;
  const std::string whole = cat(R"({"model_type": "nemotron_h_omni", "text_config": )", plain, "}");
  const std::vector<std::string> others{"vision_model.blocks.0.norm.weight", "mlp1.0.weight"};
  const auto after = [](const std::string& prefix) {
    return [prefix](const std::string& name) { return prefix + name; };
  };
  for (const char* prefix : {"module.", "_orig_mod.", "module._orig_mod."}) {
    CAPTURE(prefix);
    const std::string folder = std::string("w") + std::to_string(std::strlen(prefix));
    const auto [files, saved] = renamed(folder.c_str(), plain, {}, after(prefix));
    // Not written again: no other program would know these names.
    CHECK(SafetensorsFile(saved / single_file_name).find("lm_head.weight") != nullptr);
    CHECK(SafetensorsFile(saved / single_file_name).find("backbone.layers.0.norm.weight") != nullptr);
  }
  const auto check_omni = [&](const char* folder, const std::string& head, const std::string& norm_name,
                              const std::function<std::string(std::string)>& name) {
    CAPTURE(folder);
    const auto [files, saved] = renamed(folder, whole, others, name);
    CHECK(files.carried.size() == 2);
    const SafetensorsFile file(saved / single_file_name);
    for (const std::string& kept : {head, norm_name, others[0], others[1]})
      CHECK_MESSAGE(file.find(kept) != nullptr, kept);
  };
  check_omni("prefixed", "language_model.lm_head.weight", "language_model.backbone.layers.0.norm.weight",
             after("language_model."));
  check_omni("flat", "lm_head.weight", "backbone.layers.0.norm.weight", after(""));
  check_omni(
      "inner", "lm_head.weight", "model.language_model.layers.0.norm.weight", [](const std::string& name) {
        constexpr std::string_view backbone = "backbone.";
        return name.starts_with(backbone) ? cat("model.language_model.", name.substr(backbone.size())) : name;
      });
  // Beside a model of one part nothing is carried.
  CHECK_THROWS_WITH_AS(renamed("strange", plain, others, after("")), doctest::Contains("2 unexpected"),
                       Error);
}

TEST_CASE("hf weights: a model from scratch comes back") {
  const TestDir dir;
  ModelConfig config = small();
  config.num_nextn_predict_layers = 1;
  const std::vector<NamedTensor> model = random_model(config);
  const WeightFiles files = default_weight_files(config);
  save_hf_weights(dir / "new/", model, files);
  CHECK(names_in(dir / "new") == std::vector<std::string>{"config.json", "model.safetensors"});
  const ModelConfig written = read_hf_config(dir / "new");
  CHECK(written.num_nextn_predict_layers == 0);
  CHECK(written.dtype == DType::f32);
  const std::vector<NamedTensor> back = empty_model(written);
  load_hf_weights(dir / "new", back);
  check_same(back, model);
  config.dtype = DType::bf16;
  save_hf_weights(dir / "bf16", model, default_weight_files(config));
  const SafetensorsFile file(dir / "bf16/model.safetensors");
  CHECK(file.at("lm_head.weight").dtype == "BF16");
  CHECK(file.at("backbone.layers.0.mixer.A_log").dtype == "F32");
}

TEST_CASE("hf weights: saving, loading and copying tell how far they are, in bytes of the tensors") {
  const TestDir dir;
  const ModelConfig config = small();
  const std::vector<NamedTensor> model = random_model(config);
  std::int64_t bytes = 0;
  for (const NamedTensor& t : model) bytes += t.value.bytes();
  std::vector<std::int64_t> reached;
  const OnBytes on_bytes = [&](std::int64_t done, std::int64_t total) {
    CHECK(total == bytes);
    CHECK((reached.empty() || done >= reached.back()));
    reached.push_back(done);
  };
  const auto check = [&](const char* what) {
    CAPTURE(what);
    CHECK(reached.size() >= model.size());
    CHECK(reached.back() == bytes);
    reached.clear();
  };
  SaveOptions options;
  options.on_bytes = on_bytes;
  options.most_shard_bytes = 2000;
  save_hf_weights(dir / "m", model, default_weight_files(config), options);
  check("saving");
  load_hf_weights(dir / "m", empty_model(config), nullptr, on_bytes);
  check("loading");
  copy_hf_model(dir / "m", dir / "copy", options);
  check("copying");
}

TEST_CASE("hf weights: names and forms of every kind are accepted") {
  const ModelConfig config = small();
  const std::vector<NamedTensor> model = random_model(config);
  const TestDir dir;
  write_model(dir / "m", model, config, [&](std::vector<NamedTensor>& named) {
    find(named, "backbone.embeddings.weight").name = "model.embedding.weight";
    find(named, "backbone.norm_f.weight").name = "model.norm_f.weight";
    Tensor& head = find(named, "lm_head.weight").value;
    head = head.to(DType::f64);
    // One projection stacked, the other as one tensor for each expert.
    std::erase_if(named, [](const NamedTensor& t) {
      return canonical_tensor(t.name, usual_names).part.expert >= 0 && t.name.find("up_proj") != t.name.npos;
    });
    named.push_back(*std::ranges::find(model, "backbone.layers.1.mixer.experts.up_proj", &NamedTensor::name));
    named.back().name = "model.layers.1.mixer.experts.up_proj";
  });
  const std::vector<NamedTensor> back = empty_model(config);
  const WeightFiles files = load_hf_weights(dir / "m", back);
  check_same(back, model);
  CHECK(files.other_files.empty());
  CHECK_FALSE(files.tensors.at("backbone.layers.1.mixer.experts.up_proj").per_expert);
  CHECK(files.tensors.at("backbone.layers.1.mixer.experts.down_proj").per_expert);
  save_hf_weights(dir / "out", back, files);
  CHECK(slurp(dir / "out/model.safetensors") == slurp(dir / "m/model.safetensors"));

  // Into other dtypes, and into nothing at all.
  const std::vector<NamedTensor> half = empty_model(config, DType::bf16);
  load_hf_weights(dir / "m", half);
  for (std::size_t i = 0; i < model.size(); ++i)
    CHECK_BITS(half[i].value, model[i].value.to(half[i].value.dtype()));
  std::vector<NamedTensor> meta;
  for (const TensorSpec& spec : tensor_specs(config))
    meta.push_back({spec.name, Tensor::meta(spec.shape, DType::f32)});
  CHECK(load_hf_weights(dir / "m", meta).tensors.size() == meta.size());

  // The parts of a rank, in files of both forms.
  std::vector<NamedTensor> parts;
  for (const NamedTensor& t : model) {
    Shard shard(t.value.shape());
    for (int d = 0; d < t.value.ndim(); ++d)
      if (t.value.dim(d) > 2) shard = shard.cut(d, {{0, 1}, {2, t.value.dim(d)}});
    if (shard.numel() > 4) shard = shard.flat({1, shard.numel() - 2});
    parts.push_back({t.name, Tensor::zeros({shard.numel()}, DType::f32, Device::cpu), shard});
  }
  load_hf_weights(dir / "m", parts);
  for (std::size_t i = 0; i < model.size(); ++i) {
    CAPTURE(model[i].name);
    const auto whole = model[i].value.to_vector(), part = parts[i].value.to_vector();
    parts[i].shard->for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
      for (std::int64_t e = 0; e < count; ++e)
        CHECK(part[static_cast<std::size_t>(local + e)] == whole[static_cast<std::size_t>(global + e)]);
    });
  }

  const HfWeights weights(dir / "m");
  CHECK(weights.stored("backbone.layers.1.mixer.experts.down_proj").size() == 3);
  CHECK(weights.stored("backbone.layers.1.mixer.experts.up_proj").size() == 1);
  CHECK(weights.has("lm_head.weight"));
  CHECK_THROWS_WITH_AS(weights.stored("x"), doctest::Contains("no tensor for 'x'"), Error);
  CHECK_THROWS_WITH_AS(weights.parts("backbone.layers.1.mixer.experts.down_proj", {2, 8, 6}),
                       doctest::Contains("want all experts of"), Error);
}

TEST_CASE("hf weights: a directory is copied with every bit, or rounded tensor by tensor") {
  const ModelConfig config = small();
  const std::vector<NamedTensor> model = random_model(config);
  const TestDir dir;
  write_model(dir / "m", model, config, [&](std::vector<NamedTensor>& named) {
    Tensor& head = find(named, "lm_head.weight").value;
    head = head.to(DType::f64);
    head.data<double>()[0] = 1 + 0x1p-40;  // f32 cannot hold it
  });
  spit(dir / "m/config.json", make_hf_config(config).text);
  copy_hf_model(dir / "m", dir / "copy");
  CHECK(slurp(dir / "copy/model.safetensors") == slurp(dir / "m/model.safetensors"));
  CHECK(slurp(dir / "copy/config.json") == slurp(dir / "m/config.json"));

  const SaveOptions half{.dtype = DType::bf16, .most_shard_bytes = 4000};
  copy_hf_model(dir / "m", dir / "half", half);
  const std::vector<NamedTensor> back = empty_model(config, DType::f64);
  const WeightFiles files = load_hf_weights(dir / "m", back);
  save_hf_weights(dir / "expected", back, files, half);
  for (const auto& entry : std::filesystem::directory_iterator(dir / "expected"))
    if (entry.path().extension() == ".safetensors")
      CHECK(slurp(dir / "half" / entry.path().filename()) == slurp(entry.path()));
  CHECK_THROWS_WITH_AS(copy_hf_model(dir / "m", dir / "copy"), doctest::Contains("not empty"), Error);
}

TEST_CASE(
    "hf weights: companion files come from the directory or its cache, never through links to elsewhere") {
  const TestDir dir;
  fs::create_directories(dir / "outside");
  spit(dir / "outside/secret", "{\"auths\": {}}");
  spit(dir / "outside/config.json", R"({"model_type": "nemotron_h"})");
  spit(dir / "outside/tokenizer.json", R"({"model": {}})");
  const auto names = [](const std::map<std::string, std::string>& files) {
    std::string list;
    for (const auto& [name, text] : files) list += name + " ";
    return list;
  };
  set_log_level(LogLevel::error);

  const fs::path model = dir / "model";
  fs::create_directory(model);
  spit(model / "generation_config.json", "{}");
  spit(model / "notes.txt", "not one that travels");
  fs::create_symlink("generation_config.json", model / "tokenizer_config.json");
  fs::create_symlink("../outside/secret", model / "vocab.json");
  fs::create_symlink(dir / "outside/secret", model / "modeling.py");
  fs::create_symlink("vocab.json", model / "merges.txt");
  fs::create_symlink("nowhere", model / "added_tokens.json");
  fs::create_symlink("../outside/secret", model / "config.json");
  fs::create_symlink("../outside/secret", model / "tokenizer.json");
  REQUIRE(::mkfifo((model / "chat_template.jinja").c_str(), 0600) == 0);
  CHECK_THROWS_WITH_AS(read_companion_files(model),
                       doctest::Contains("/chat_template.jinja: want a regular file, got a FIFO"), Error);
  fs::remove(model / "chat_template.jinja");
  CHECK(names(read_companion_files(model)) == "generation_config.json tokenizer_config.json ");
  for (const char* name : {"config.json", "tokenizer.json"}) {
    fs::remove(model / name);
    fs::create_symlink(dir / "outside" / name, model / name);
  }
  const std::string all = "config.json generation_config.json tokenizer.json tokenizer_config.json ";
  CHECK(names(read_companion_files(model)) == all);
  fs::create_symlink(model, dir / "link");
  CHECK(names(read_companion_files(dir / "link")) == all);

  // A Hugging Face cache: every file is a link to blobs beside snapshots.
  const fs::path cache = dir / "models--a--b", snapshot = cache / "snapshots/12ab";
  fs::create_directories(snapshot);
  fs::create_directories(cache / "blobs");
  spit(cache / "blobs/77", "blob");
  fs::create_symlink("../../blobs/77", snapshot / "merges.txt");
  fs::create_symlink("../../../outside/secret", snapshot / "vocab.json");
  fs::create_symlink("../../refs/main", snapshot / "added_tokens.json");
  CHECK(names(read_companion_files(snapshot)) == "merges.txt ");
  // A link in place of the directory `blobs` also leads outside.
  fs::rename(cache / "blobs", dir / "elsewhere");
  fs::create_symlink("../elsewhere", cache / "blobs");
  CHECK(names(read_companion_files(snapshot)).empty());
  // A directory that is not in a cache has no blobs.
  const fs::path lone = dir / "models--a--b/other/12ab";
  fs::create_directories(lone);
  fs::create_symlink("../../../elsewhere/77", lone / "merges.txt");
  CHECK(names(read_companion_files(lone)).empty());
  set_log_level(LogLevel::info);
}

TEST_CASE("hf weights: further chat templates travel with a model, and links to elsewhere do not") {
  const TestDir dir;
  spit(dir / "secret", "x");
  const fs::path more = dir / "model/additional_chat_templates";
  fs::create_directories(more);
  spit(more / "tool_use.jinja", "{{ tools }}");
  spit(more / "notes.txt", "");
  fs::create_symlink("tool_use.jinja", more / "same.jinja");
  fs::create_symlink("../../secret", more / "leak.jinja");
  fs::create_directory(more / "deeper.jinja");
  set_log_level(LogLevel::error);
  const auto found = read_companion_files(dir / "model");
  CHECK(found ==
        std::map<std::string, std::string>{{"additional_chat_templates/same.jinja", "{{ tools }}"},
                                           {"additional_chat_templates/tool_use.jinja", "{{ tools }}"}});
  // The whole folder may be elsewhere, too.
  fs::create_directory(dir / "other");
  fs::create_symlink(more, dir / "other/additional_chat_templates");
  CHECK(read_companion_files(dir / "other").empty());
  set_log_level(LogLevel::info);

  const ModelConfig config = small();
  WeightFiles files = default_weight_files(config);
  files.other_files.insert(found.begin(), found.end());
  const FileSums sums = save_hf_weights(dir / "saved", random_model(config), files);
  CHECK(sums.contains("additional_chat_templates/tool_use.jinja"));
  CHECK(slurp(dir / "saved/additional_chat_templates/tool_use.jinja") == "{{ tools }}");
  CHECK(HfWeights(dir / "saved").files(empty_model(config)).other_files == [&] {
    auto all = files.other_files;
    all["config.json"] = slurp(dir / "saved/config.json");
    return all;
  }());
}

TEST_CASE("hf weights: f16 is read and becomes f32 when saved") {
  const ModelConfig config = small();
  const TestDir dir;
  std::vector<TensorSource> sources;
  const std::uint16_t half = 0x3e00;  // 1.5
  for (const NamedTensor& t : to_file_names(empty_model(config), default_weight_files(config))) {
    const auto dims = t.value.shape().dims();
    const std::int64_t count = t.value.numel();
    const auto write = [count, &half](const ByteSink& sink) {
      for (std::int64_t i = 0; i < count; ++i) sink(std::as_bytes(std::span(&half, 1)));
    };
    sources.push_back({t.name, "F16", {dims.begin(), dims.end()}, {{0, count, write}}});
  }
  fs::create_directory(dir / "m");
  write_safetensors(dir / "m/model.safetensors", std::move(sources));
  std::string text = make_hf_config(config).text;
  text.insert(text.find('{') + 1, "\"torch_dtype\": \"float16\",");
  spit(dir / "m/config.json", text);
  const std::vector<NamedTensor> model = empty_model(config);
  const WeightFiles files = load_hf_weights(dir / "m", model);
  CHECK(find(model, "lm_head.weight").value.to_vector()[5] == 1.5);
  save_hf_weights(dir / "out", model, files);
  CHECK(SafetensorsFile(dir / "out/model.safetensors").at("lm_head.weight").dtype == "F32");
  CHECK(slurp(dir / "out/config.json").find("\"torch_dtype\": \"float32\"") != std::string::npos);
}

TEST_CASE("hf weights: what does not fit is listed by name") {
  const ModelConfig config = small();
  const std::vector<NamedTensor> model = random_model(config), into = empty_model(config);
  const TestDir dir;
  write_model(dir / "m", model, config, [](std::vector<NamedTensor>& named) {
    std::erase_if(named, [](const NamedTensor& t) {
      return t.name == "backbone.norm_f.weight" || t.name.find("experts.1.up_proj") != t.name.npos;
    });
    find(named, "lm_head.weight").value = Tensor::zeros({2, 8}, DType::f32, Device::cpu);
    find(named, "backbone.layers.0.mixer.D").value = Tensor::from<std::int32_t>({1, 2}, {2});
    for (int i = 0; i < 12; ++i)
      named.push_back({cat("extra.", i), Tensor::scalar(0, DType::f32, Device::cpu)});
    named.push_back({"backbone.layers.1.mixer.experts.3.down_proj.weight",
                     Tensor::zeros({8, 6}, DType::f32, Device::cpu)});
    named.push_back({"mtp.layers.0.norm.weight", Tensor::zeros({8}, DType::f32, Device::cpu)});
  });
  std::string message;
  try {
    load_hf_weights(dir / "m", into);
  } catch (const Error& error) {
    message = error.what();
  }
  for (const char* part :
       {"the tensors are not those of the model",
        "2 missing: backbone.layers.1.mixer.experts.1.up_proj.weight, backbone.norm_f.weight",
        "13 unexpected: backbone.layers.1.mixer.experts.3.down_proj.weight, extra.0", ", ...",
        "2 with another shape or dtype: backbone.layers.0.mixer.D is I32 [2], want floating [2]",
        "want floating [2], lm_head.weight is F32 [2, 8], want floating [24, 8]"})
    CHECK_MESSAGE(message.find(part) != message.npos, part, " in ", message);
  CHECK(message.find("extra.9") == message.npos);
  CHECK(message.find("mtp") == message.npos);
  CHECK(into[0].value.to_vector()[0] == 0);  // nothing is loaded before all tensors are checked

  const auto twice = [&](const char* first, const char* second) {
    write_model(dir / "t", model, config, [&](std::vector<NamedTensor>& named) {
      for (const char* name : {first, second})
        named.push_back({name, Tensor::scalar(0, DType::f32, Device::cpu)});
    });
    CHECK_THROWS_WITH_AS(HfWeights(dir / "t"), doctest::Contains("the same weights under two names"), Error);
  };
  // Names of both, whichever comes first in the file.
  write_model(dir / "t", model, config, [&](std::vector<NamedTensor>& named) {
    named.push_back({"backbone.layers.1.mixer.experts.up_proj", Tensor::scalar(0, DType::f32, Device::cpu)});
  });
  CHECK_THROWS_WITH_AS(HfWeights(dir / "t"), doctest::Contains("experts.0.up_proj.weight'"), Error);
  CHECK_THROWS_WITH_AS(HfWeights(dir / "t"), doctest::Contains("experts.up_proj'"), Error);
  twice("model.a", "backbone.a");
  twice("backbone.embedding.weight", "x");
  twice("backbone.layers.1.mixer.experts.up_proj", "x");
}

TEST_CASE("hf weights: multi-token prediction travels bit for bit") {
  const ModelConfig config = small();
  const std::vector<NamedTensor> model = random_model(config);
  const TestDir dir;
  fs::create_directory(dir / "m");
  std::vector<TensorSource> first, second;
  for (const NamedTensor& t : to_file_names(model, default_weight_files(config)))
    first.push_back(source_of(t.name, t.value, DType::f32));
  const std::string bytes = "\x01\xff\x7f\x80";
  const auto write = [&](const ByteSink& sink) { sink(std::as_bytes(std::span(bytes))); };
  second.push_back({"mtp.layers.0.eh_proj.weight", "F8_E4M3", {2, 2}, {{0, 4, write}}});
  second.push_back({"mtp.layers.0.enorm.weight", "F16", {2}, {{0, 2, write}}});
  second.push_back({"mtp.layers.1.mixer.experts.0.up_proj.weight", "BF16", {1, 2}, {{0, 2, write}}});
  FileShards shards;
  shards["model-00001-of-00002.safetensors"] = std::move(first);
  shards["model-00002-of-00002.safetensors"] = std::move(second);
  write_safetensors_model(dir / "m", std::move(shards));
  spit(dir / "m/config.json", make_hf_config(config).text);
  spit(dir / "m/tokenizer.json", "{}");
  spit(dir / "m/tokenizer_config.json", "{\"a\": 1}");
  spit(dir / "m/generation_config.json", "{\"eos_token_id\": 2}");
  spit(dir / "m/modeling_x.py", "pass");
  spit(dir / "m/README.md", "stays");

  const std::vector<NamedTensor> back = empty_model(config);
  const WeightFiles files = load_hf_weights(dir / "m", back);
  CHECK(files.carried.size() == 3);
  fs::remove(dir / "m/model-00002-of-00002.safetensors");  // it is still open
  save_hf_weights(dir / "out", back, files);
  std::vector<std::string> want{"config.json",
                                "generation_config.json",
                                "model-00001-of-00002.safetensors",
                                "model-00002-of-00002.safetensors",
                                "model.safetensors.index.json",
                                "modeling_x.py",
                                "tokenizer.json",
                                "tokenizer_config.json"};
  CHECK(names_in(dir / "out") == want);
  for (const char* name :
       {"model-00001-of-00002.safetensors", "model.safetensors.index.json", "config.json", "tokenizer.json"})
    CHECK_MESSAGE(slurp(dir / (std::string("out/") + name)) == slurp(dir / (std::string("m/") + name)), name);
  const auto check_carried = [&](const fs::path& out) {
    const SafetensorsTensors all = open_safetensors_model(out);
    for (const char* name : {"mtp.layers.0.eh_proj.weight", "mtp.layers.0.enorm.weight",
                             "mtp.layers.1.mixer.experts.0.up_proj.weight"}) {
      const StoredIn& stored = all.at(name);
      std::vector<std::byte> got(bytes.size());
      stored.file->read_bytes(*stored.entry, 0, got);
      CHECK(std::memcmp(got.data(), bytes.data(), bytes.size()) == 0);
    }
    CHECK(all.at("mtp.layers.0.eh_proj.weight").entry->dtype == "F8_E4M3");
    CHECK(all.at("mtp.layers.0.enorm.weight").entry->dtype == "F16");
  };
  check_carried(dir / "out");

  // Another dtype and another division into files.
  SaveOptions options{DType::bf16, 1000};
  save_hf_weights(dir / "small", back, files, options);
  check_carried(dir / "small");
  const SafetensorsTensors all = open_safetensors_model(dir / "small");
  CHECK(all.at("lm_head.weight").entry->dtype == "BF16");
  CHECK(all.at("backbone.layers.0.mixer.dt_bias").entry->dtype == "F32");
  CHECK(all.at("backbone.layers.1.mixer.gate.e_score_correction_bias").entry->dtype == "F32");
  CHECK(read_hf_config(dir / "small").dtype == DType::bf16);
  CHECK(names_in(dir / "small").size() > 8);
  CHECK_BITS(all.at("lm_head.weight").value(), find(back, "lm_head.weight").value.to(DType::bf16));
}

TEST_CASE("hf weights: saving never overwrites and leaves nothing half done") {
  const ModelConfig config = small();
  const std::vector<NamedTensor> model = random_model(config);
  const WeightFiles files = default_weight_files(config);
  const TestDir dir;
  fs::create_directory(dir / "full");
  spit(dir / "full/mine", "x");
  CHECK_THROWS_WITH_AS(save_hf_weights(dir / "full", model, files),
                       doctest::Contains("exists and is not empty"), Error);
  spit(dir / "file", "x");
  CHECK_THROWS_AS(save_hf_weights(dir / "file", model, files), Error);
  CHECK_THROWS_AS(save_hf_weights(dir / "file/below", model, files), Error);
  WeightFiles broken = files;
  broken.other_files["config.json/such"] = "x";  // below a file
  CHECK_THROWS_AS(save_hf_weights(dir / "new", model, broken), Error);
  CHECK_THROWS_AS(save_hf_weights(dir / "new", std::span(model).subspan(1), files), std::logic_error);
  CHECK_THROWS_AS(save_hf_weights(dir / "new", model, files, {DType::i32, {}}), Error);
  CHECK(names_in(dir.path()) == std::vector<std::string>{"file", "full"});
  fs::create_directory(dir / "empty");
  save_hf_weights(dir / "empty", model, files);
  save_hf_weights(dir / "deep/er", model, files);
  CHECK(names_in(dir.path()) == std::vector<std::string>{"deep", "empty", "file", "full"});
  CHECK(slurp(dir / "empty/model.safetensors") == slurp(dir / "deep/er/model.safetensors"));
}

TEST_CASE("hf weights: a damaged model file is refused or gives the same weights") {
  const ModelConfig config = small();
  const std::vector<NamedTensor> model = random_model(config), back = empty_model(config);
  const TestDir dir;
  save_hf_weights(dir / "m", model, default_weight_files(config));
  const std::string intact = slurp(dir / "m/model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, intact.data(), 8);
  const auto loads = [&](const std::string& file) {
    spit(dir / "m/model.safetensors", file);
    try {
      load_hf_weights(dir / "m", back);
    } catch (const Error&) {
      return false;
    }
    for (std::size_t i = 0; i < back.size(); ++i)
      if (!compare_bits(back[i].value, model[i].value)) FAIL(back[i].name, " has changed");
    return true;
  };
  CHECK(loads(intact));
  for (std::size_t n = 0; n < intact.size(); n += n < header ? 37 : 301)
    CHECK_FALSE(loads(intact.substr(0, n)));
  CHECK_FALSE(loads(intact.substr(0, intact.size() - 1)));
  CHECK_FALSE(loads(intact + '\0'));
  const RandomStream random(22, "model damage");
  int refused = 0;
  for (std::uint64_t i = 0; i < 400; ++i) {
    std::string file = intact;
    const std::size_t at = random.below(4 * i, 8 + header);
    file[at] = random.below(4 * i + 1, 2) ? static_cast<char>(random.below(4 * i + 2, 256))
                                          : static_cast<char>(file[at] ^ (1 << random.below(4 * i + 3, 7)));
    refused += !loads(file);
  }
  CHECK(refused > 380);
}
