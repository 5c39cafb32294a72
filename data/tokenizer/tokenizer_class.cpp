#include "data/tokenizer/tokenizer_class.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "core/utf8.h"
#include "data/json/json.h"
#include "data/tokenizer/byte_level.h"

namespace nemocube::tok {
namespace {

/// Compared without regard to the order of keys, unlike Json.
using Value = nlohmann::json;

/// What decides about ids and text. Sections are lists of steps as steps_of() gives them.
struct Pipeline {
  Value normalizer = Value::array(), pre_tokenizer = Value::array(), decoder = Value::array();
  bool byte_fallback = false, ignore_merges = false, fuse_unk = false;
  std::optional<std::string> unk_token{};
};

Value plain_step(const char* type) { return {{"type", type}}; }
Value replace_step(const char* pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", {{"String", pattern}}}, {"content", content}};
}
Value split_step(const Value& pattern, const char* behavior) {
  return {{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", false}};
}

// ---- of tokenizer.json ----

/// Member `key`, or what it stands for where it is absent or null.
Value member_or(const Value& object, const char* key, const Value& fallback) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? fallback : *found;
}

/// `list`: the key of the steps of a Sequence. "decoders": steps are those of a decoder.
void add_steps(const Value& section, const std::string& list, Value& out) {
  const bool is_decoder = list == "decoders";
  const std::string type = section.at("type");
  if (type == "Sequence") {
    for (const Value& step : section.at(list)) add_steps(step, list, out);
    return;
  }
  Value one = section;
  if (type == "ByteLevel") {
    one = {{"type", type}};
    if (!is_decoder) {
      one["add_prefix_space"] = section.at("add_prefix_space");
      one["use_regex"] = member_or(section, "use_regex", true);
    }
  } else if (type == "Metaspace") {
    one = {{"type", type}, {"replacement", section.at("replacement")}};
    one["prepend_scheme"] = member_or(section, "prepend_scheme", "always");
    if (!is_decoder) one["split"] = member_or(section, "split", true);
  }
  out.push_back(std::move(one));
}

/// The steps of a section in one list, without keys that change neither ids nor text.
Value steps_of(const JsonRef& tokenizer, const char* section, const char* list) {
  Value out = Value::array();
  if (const auto spec = tokenizer.find(section)) add_steps(spec->value(), list, out);
  return out;
}

Pipeline pipeline_of(const JsonRef& tokenizer) {
  const JsonRef model = tokenizer.at("model");
  Pipeline out{steps_of(tokenizer, "normalizer", "normalizers"),
               steps_of(tokenizer, "pre_tokenizer", "pretokenizers"),
               steps_of(tokenizer, "decoder", "decoders")};
  out.byte_fallback = model.boolean_or("byte_fallback", false);
  out.ignore_merges = model.boolean_or("ignore_merges", false);
  out.fuse_unk = model.boolean_or("fuse_unk", false);
  if (const auto unk = model.find("unk_token")) out.unk_token = unk->string();
  return out;
}

/// Whether the vocabulary has a token for every byte, so that no character is unknown.
bool spells_everything(const Bpe& model, const Pipeline& pipeline) {
  const bool byte_level = pipeline.decoder == Value::array({plain_step("ByteLevel")});
  if (!byte_level && !pipeline.byte_fallback) return false;
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    if (byte_level)
      append_utf8(token, byte_to_character(static_cast<unsigned char>(byte)));
    else
      token = {'<', '0', 'x', "0123456789ABCDEF"[byte >> 4], "0123456789ABCDEF"[byte & 15], '>'};
    if (!model.token_to_id(token)) return false;
  }
  return true;
}

// ---- of the classes ----

std::optional<std::string> text_of(const Value& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return std::nullopt;
  const Value& value = found->is_object() && found->contains("content") ? (*found)["content"] : *found;
  return value.is_string() ? std::optional(value.get<std::string>()) : std::nullopt;
}

bool flag_of(const Value& config, const char* key, bool fallback) {
  const auto found = config.find(key);
  return found != config.end() && found->is_boolean() ? found->get<bool>() : fallback;
}

/// Characters with byte fallback, and U+2581 for spaces.
Pipeline of_characters(std::optional<std::string> unk_token) {
  Pipeline out;
  out.decoder = {replace_step("\u2581", " "), plain_step("ByteFallback"), plain_step("Fuse")};
  out.byte_fallback = out.fuse_unk = true;
  out.unk_token = std::move(unk_token);
  return out;
}

Pipeline with_metaspace(Pipeline out, const char* prepend_scheme, bool strips) {
  out.pre_tokenizer = Value::array({{{"type", "Metaspace"},
                                     {"replacement", "\u2581"},
                                     {"prepend_scheme", prepend_scheme},
                                     {"split", false}}});
  if (strips) out.decoder.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return out;
}

Pipeline llama_pipeline(const Value& config) {
  const bool prefix = flag_of(config, "add_prefix_space", true);
  const char* scheme = !prefix ? "never" : flag_of(config, "legacy", false) ? "always" : "first";
  return with_metaspace(of_characters(std::nullopt), scheme, prefix);
}

Pipeline code_llama_pipeline(const Value& config) {
  const char* scheme = flag_of(config, "add_prefix_space", true) ? "first" : "never";
  return with_metaspace(of_characters(text_of(config, "unk_token").value_or("<unk>")), scheme, true);
}

Pipeline gemma_pipeline(const Value& config) {
  Pipeline out = of_characters(text_of(config, "unk_token").value_or("<unk>"));
  out.normalizer = Value::array({replace_step(" ", "\u2581")});
  out.pre_tokenizer = Value::array({split_step({{"String", " "}}, "MergedWithPrevious")});
  return out;
}

Pipeline of_bytes(const Value& config, bool use_regex) {
  Pipeline out;
  out.pre_tokenizer = Value::array({{{"type", "ByteLevel"},
                                     {"add_prefix_space", flag_of(config, "add_prefix_space", false)},
                                     {"use_regex", use_regex}}});
  out.decoder = Value::array({plain_step("ByteLevel")});
  return out;
}

Pipeline gpt2_pipeline(const Value& config) { return of_bytes(config, true); }

Pipeline gpt_neox_pipeline(const Value& config) {
  Pipeline out = of_bytes(config, true);
  out.normalizer = Value::array({plain_step("NFC")});
  return out;
}

Pipeline cohere_pipeline(const Value& config) {
  Pipeline out = gpt_neox_pipeline(config);
  const Value digits = {{"type", "Digits"}, {"individual_digits", true}};
  out.pre_tokenizer.insert(out.pre_tokenizer.begin(), digits);
  return out;
}

/// `letters`: the class of what makes a word.
Pipeline qwen_pipeline(const Value& config, const std::string& letters) {
  Pipeline out = of_bytes(config, false);
  out.normalizer = Value::array({plain_step("NFC")});
  const std::string word = letters == "\\p{L}" ? letters : "[" + letters + "]";
  const std::string expression = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?" + word +
                                 "+|\\p{N}| ?[^\\s" + letters +
                                 "\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  out.pre_tokenizer.insert(out.pre_tokenizer.begin(), split_step({{"Regex", expression}}, "Isolated"));
  return out;
}

Pipeline qwen2_pipeline(const Value& config) { return qwen_pipeline(config, "\\p{L}"); }
Pipeline qwen3_5_pipeline(const Value& config) { return qwen_pipeline(config, "\\p{L}\\p{M}"); }

const std::map<std::string, Pipeline (*)(const Value& config), std::less<>> classes = {
    {"LlamaTokenizer", llama_pipeline},    {"CodeLlamaTokenizer", code_llama_pipeline},
    {"GemmaTokenizer", gemma_pipeline},    {"GPT2Tokenizer", gpt2_pipeline},
    {"CodeGenTokenizer", gpt2_pipeline},   {"GPTNeoXTokenizer", gpt_neox_pipeline},
    {"CohereTokenizer", cohere_pipeline},  {"Qwen2Tokenizer", qwen2_pipeline},
    {"Qwen3_5Tokenizer", qwen3_5_pipeline}};

// ---- the class of a folder ----

/// The class that is registered for a type of models. Types with classes that obey tokenizer.json are left
/// out.
struct Registered {
  std::string_view name;
  bool always = false;  // whatever tokenizer_class says
};

const std::map<std::string, Registered, std::less<>> registered = {
    {"code_llama", {"CodeLlamaTokenizer"}},
    {"gemma", {"GemmaTokenizer"}},
    {"gemma2", {"GemmaTokenizer"}},
    {"gemma3", {"GemmaTokenizer"}},
    {"gemma3_text", {"GemmaTokenizer"}},
    {"gemma3n", {"GemmaTokenizer"}},
    {"gemma3n_text", {"GemmaTokenizer"}},
    {"recurrent_gemma", {"GemmaTokenizer"}},
    {"codegen", {"GPT2Tokenizer"}},
    {"dbrx", {"GPT2Tokenizer"}},
    {"gpt2", {"GPT2Tokenizer"}},
    {"gpt_neo", {"GPT2Tokenizer"}},
    {"gptj", {"GPT2Tokenizer"}},
    {"jais2", {"GPT2Tokenizer"}},
    {"opt", {"GPT2Tokenizer"}},
    {"phi", {"GPT2Tokenizer"}},
    {"starcoder2", {"GPT2Tokenizer"}},
    {"falcon_mamba", {"GPTNeoXTokenizer"}},
    {"gpt_neox", {"GPTNeoXTokenizer"}},
    {"mamba", {"GPTNeoXTokenizer"}},
    {"mamba2", {"GPTNeoXTokenizer"}},
    {"mpt", {"GPTNeoXTokenizer"}},
    {"olmo", {"GPTNeoXTokenizer"}},
    {"olmoe", {"GPTNeoXTokenizer"}},
    {"rwkv", {"GPTNeoXTokenizer"}},
    {"xlstm", {"GPTNeoXTokenizer"}},
    {"cohere", {"CohereTokenizer"}},
    {"cohere2", {"CohereTokenizer"}},
    {"qwen2", {"Qwen2Tokenizer", true}},
    {"qwen2_5_vl", {"Qwen2Tokenizer"}},
    {"qwen2_moe", {"Qwen2Tokenizer"}},
    {"qwen2_vl", {"Qwen2Tokenizer"}},
    {"qwen3", {"Qwen2Tokenizer"}},
    {"qwen3_moe", {"Qwen2Tokenizer"}},
    {"qwen3_next", {"Qwen2Tokenizer"}},
    {"qwen3_vl", {"Qwen2Tokenizer"}},
    {"qwen3_vl_moe", {"Qwen2Tokenizer"}},
    {"qwen3_5", {"Qwen3_5Tokenizer", true}},
    {"qwen3_5_text", {"Qwen3_5Tokenizer"}},
    {"qwen3_5_moe", {"Qwen3_5Tokenizer", true}}};

/// Types that have no registered class. Their models' tokenizer_class counts.
constexpr std::string_view unregistered[] = {"", "llama", "nemotron_h", "nemotron-nas"};

/// Classes that obey tokenizer.json.
constexpr std::string_view obedient[] = {"PreTrainedTokenizer", "TokenizersBackend", "PythonBackend"};

Value read_object(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return Value::object();
  Value document = read_json_file(file);
  return document.is_object() ? document : Value::object();
}

std::string without_fast(std::string name) {
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

/// Whether a ByteLevel step is anywhere in the document: AutoTokenizer then does not believe in
/// LlamaTokenizer.
bool has_byte_level(const Pipeline& pipeline, const JsonRef& tokenizer) {
  const auto among = [](const Value& steps) {
    return std::ranges::any_of(steps, [](const Value& one) { return one["type"] == "ByteLevel"; });
  };
  const auto post = tokenizer.find("post_processor");
  return among(pipeline.pre_tokenizer) || among(pipeline.decoder) ||
         (post && post->value().dump().find("\"ByteLevel\"") != std::string::npos);
}

/// The class that AutoTokenizer takes; empty where it obeys tokenizer.json and where that is not known.
std::string class_of(const Value& tokenizer_config, const Value& config, bool byte_level) {
  if (tokenizer_config.contains("auto_map")) return "";
  std::string named = text_of(tokenizer_config, "tokenizer_class").value_or("");
  if (named.empty()) named = text_of(config, "tokenizer_class").value_or("");
  named = without_fast(named);
  const std::string type = text_of(config, "model_type").value_or("");
  const auto found = registered.find(type);
  if (found != registered.end() && found->second.always) return std::string(found->second.name);
  if (std::ranges::find(obedient, named) != std::end(obedient)) return "";
  if (named == "LlamaTokenizer" && byte_level) return "";
  if (found == registered.end())
    return std::ranges::find(unregistered, type) != std::end(unregistered) ? named : "";
  return named.empty() ? std::string(found->second.name) : named;
}

std::vector<std::string> differences(const Pipeline& file, const Pipeline& made, const Bpe& model) {
  std::vector<std::string> out;
  if (file.normalizer != made.normalizer) out.emplace_back("normalizer");
  if (file.pre_tokenizer != made.pre_tokenizer) out.emplace_back("pre_tokenizer");
  if (file.byte_fallback != made.byte_fallback) out.emplace_back("model.byte_fallback");
  if (file.ignore_merges != made.ignore_merges) out.emplace_back("model.ignore_merges");
  if (!spells_everything(model, file) || !spells_everything(model, made)) {
    if (file.fuse_unk != made.fuse_unk) out.emplace_back("model.fuse_unk");
    if (file.unk_token != made.unk_token) out.emplace_back("model.unk_token");
  }
  if (file.decoder != made.decoder) out.emplace_back("decoder");
  return out;
}

}  // namespace

std::string difference_of_class(const std::filesystem::path& folder, const JsonRef& tokenizer,
                                const Bpe& model) {
  Value tokenizer_config, config;
  try {
    tokenizer_config = read_object(folder / "tokenizer_config.json");
    config = read_object(folder / "config.json");
  } catch (const Error&) {
    return "";  // whoever needs the file refuses it
  }
  const Pipeline file = pipeline_of(tokenizer);
  const std::string name = class_of(tokenizer_config, config, has_byte_level(file, tokenizer));
  const auto found = classes.find(name);
  if (found == classes.end()) return "";
  const Pipeline made = found->second(tokenizer_config);
  std::string list;
  for (const std::string& one : differences(file, made, model)) list += (list.empty() ? "" : ", ") + one;
  if (list.empty()) return "";
  return cat((folder / "tokenizer.json").string(), ": AutoTokenizer of transformers 5.24 loads ", name,
             " here, which makes these parts in a way of its own: ", list,
             ". This program does what tokenizer.json says");
}

}  // namespace nemocube::tok
