#include "data/hf/quantization_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <vector>

#include "data/hf/language_part.h"
#include "data/safetensors/quantized.h"

namespace nemocube {
namespace {

constexpr const char* declaring_keys[] = {"quantization_config", "compression_config"};

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

/// The section of a file that declares how weights are quantized.
class Declaration {
 public:
  Declaration(const JsonView& section, std::string title) : section_(section), title_(std::move(title)) {
    out_.place = cat(section.file(), ": '", title_, "'");
  }

  DeclaredQuantization read() {
    if (!section_.value().is_object()) refuse();
    const auto method = section_.find("quant_method");
    if (method && method->string() == "fp8") {
      read_blocks();
      return out_;
    }
    if (method && method->string() != "modelopt") refuse();
    if (const auto algorithm = section_.find("quant_algo")) {
      if (algorithm->string() == "MIXED_PRECISION")
        read_layers();
      else if (!reads(algorithm->string()))
        refuse();
    } else if (const auto groups = section_.find("config_groups")) {
      read_groups(*groups);
    } else if (!section_.has("kv_cache_scheme") && !section_.has("kv_cache_quant_algo")) {
      refuse();
    }
    return out_;
  }

 private:
  /// Notes the kind of weights that an algorithm makes.
  bool reads(std::string_view algorithm) {
    const bool fp8 = is_one_of(algorithm, {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"}),
               nvfp4 = is_one_of(algorithm, {"NVFP4", "W4A16_NVFP4"});
    out_.fp8 = out_.fp8 || fp8, out_.nvfp4 = out_.nvfp4 || nvfp4;
    return fp8 || nvfp4;
  }

  void read_layers() {
    const auto layers = section_.find("quantized_layers");
    if (!layers) {
      out_.fp8 = out_.nvfp4 = true;
      return;
    }
    if (!layers->value().is_object()) layers->refuse("an object");
    for (const auto& item : layers->value().items()) {
      const JsonView algorithm = layers->member(item.key()).at("quant_algo");
      if (!reads(algorithm.string())) refuse(algorithm);
    }
  }

  void read_groups(const JsonView& groups) {
    if (!groups.value().is_object()) groups.refuse("an object");
    for (const auto& item : groups.value().items()) {
      const JsonView weights = groups.member(item.key()).at("weights");
      const std::int64_t bits = weights.at("num_bits").integer();
      if (weights.at("type").string() != "float" || (bits != 8 && bits != 4)) refuse(weights);
      (bits == 8 ? out_.fp8 : out_.nvfp4) = true;
    }
  }

  void read_blocks() {
    out_.fp8 = true;
    const auto size = section_.find("weight_block_size");
    if (!size) return;
    const std::vector<JsonView> edges = size->elements();
    if (edges.size() != 2 || edges[0].integer() != 128 || edges[1].integer() != 128)
      size->refuse("[128, 128]");
  }

  [[noreturn]] void refuse() const { refuse(std::nullopt); }
  /// Names the scheme, and the value at fault where it is not the scheme's own.
  [[noreturn]] void refuse(const std::optional<JsonView>& value) const {
    std::string scheme;
    if (section_.value().is_object())
      for (const char* name : {"quant_method", "quant_algo", "format"})
        if (const auto found = section_.find(name))
          scheme += cat(scheme.empty() ? " (" : ", ", name, ' ', brief(found->value()));
    if (!scheme.empty()) scheme += ')';
    const std::string at = value ? cat(", '", value->place(), "' ", brief(value->value())) : "";
    fail(section_.file(), ": '", title_, "'", scheme, at,
         ": the weights are quantized in a way that is not supported; want quant_method modelopt with "
         "quant_algo FP8, "
         "FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, NVFP4, W4A16_NVFP4 or MIXED_PRECISION of these, quant_method "
         "fp8, or the "
         "model's BF16 or FP32 weights");
  }

  JsonView section_;
  std::string title_;
  DeclaredQuantization out_;
};

std::vector<DeclaredQuantization> declared_in(const std::filesystem::path& directory) {
  std::vector<DeclaredQuantization> all;
  std::error_code none;
  if (const auto file = directory / "config.json"; std::filesystem::exists(file, none)) {
    const Json document = read_json_file(file);
    if (document.is_object())
      if (auto declared = declared_quantization(JsonView(document, file.string()))) all.push_back(*declared);
  }
  if (const auto file = directory / "hf_quant_config.json"; std::filesystem::exists(file, none)) {
    const Json document = read_json_file(file);
    all.push_back(Declaration(JsonView(document, file.string()).at("quantization"), "quantization").read());
  }
  return all;
}

}  // namespace

std::optional<DeclaredQuantization> declared_quantization(const JsonView& config) {
  std::optional<DeclaredQuantization> of_part;
  if (const auto part = language_part(config)) of_part = declared_quantization(*part);
  for (const char* key : declaring_keys) {
    const auto section = config.find(key);
    if (!section || (section->value().is_structured() && section->value().empty())) continue;
    const DeclaredQuantization of_all =
        Declaration(*section, key).read();  // refused here, whatever the part says
    return of_part ? of_part : of_all;
  }
  return of_part;
}

void check_declared_quantization(const std::filesystem::path& directory, const SafetensorsTensors& tensors) {
  for (const DeclaredQuantization& declared : declared_in(directory))
    for (const auto& [name, stored] : tensors) {
      if (!stored.quantized) continue;
      const bool nvfp4 = stored.quantized->is_nvfp4();
      require(nvfp4 ? declared.nvfp4 : declared.fp8, declared.place, " names no ", nvfp4 ? "NVFP4" : "FP8",
              " weights, but ", stored.file->path().string(), ": tensor '", name, "' is ",
              nvfp4 ? "NVFP4" : "FP8");
    }
}

std::string without_quantization(const std::string& text) {
  Json document = parse_json(text, "config.json");
  std::size_t removed = 0;
  const auto remove = [&](Json& config) {
    for (const char* key : declaring_keys) removed += config.erase(key);
  };
  if (const auto part = language_part(JsonView(document, "config.json"))) remove(document.at(part->place()));
  if (document.is_object()) remove(document);
  return removed > 0 ? dump_json(document) + "\n" : text;
}

}  // namespace nemocube
