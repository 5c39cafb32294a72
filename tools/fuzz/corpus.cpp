// Writes the inputs that a fuzzer begins with, made of the goldens, and a dictionary of their words, which
// the fuzzer puts into others: corpus SOURCE FUZZER LONGEST FOLDER writes inputs of at most LONGEST bytes to
// FOLDER/corpus, and FOLDER/dictionary.
#include <cctype>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "data/chat/jinja/template.h"
#include "data/json/json.h"
#include "data/json/test_dir.h"

using namespace nemocube;
namespace fs = std::filesystem;

namespace {

using Inputs = std::vector<std::string>;

/// The files below `folder` whose names end so.
Inputs files(const fs::path& folder, std::string_view end) {
  Inputs inputs;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().filename().string().ends_with(end))
      inputs.push_back(testing::slurp(entry.path()));
  return inputs;
}

/// A document without what no reader looks at: members that are null, and a tokenizer's way to join two
/// texts.
Json shortened(const Json& value) {
  if (!value.is_structured()) return value;
  Json kept = value.is_array() ? Json::array() : Json::object();
  for (const auto& [key, item] : value.items())
    if (value.is_array())
      kept.push_back(shortened(item));
    else if (!item.is_null() && key != "pair")
      kept[key] = shortened(item);
  return kept;
}

/// The same of files with documents, as text.
Inputs documents(const fs::path& folder, std::string_view end) {
  Inputs inputs;
  for (const std::string& file : files(folder, end))
    inputs.push_back(dump_json(shortened(parse_json(file, "golden")), -1));
  return inputs;
}

/// Templates, and those of their lines that are templates themselves.
Inputs templates(const fs::path& source) {
  Inputs inputs = files(source / "tests/goldens/chat", ".jinja");
  for (const std::string& whole : Inputs(inputs)) {
    std::istringstream lines(whole);
    for (std::string line; std::getline(lines, line);) try {
        const jinja::Template complete("line", line);
        inputs.push_back(line);
      } catch (const Error&) {
      }
  }
  const Json torture = read_json_file(source / "tests/goldens/chat/torture.json");
  for (const Json& snippet : torture["snippets"]) inputs.push_back(snippet["template"]);
  inputs.push_back("{{ strftime_now('%Y' ~ nul) }}");
  return inputs;
}

/// Recipes without comments, and each of their sections in a small recipe.
Inputs recipes(const fs::path& folder) {
  const std::string steps = "step_scheduler: {max_steps: 3}\n", dataset = "dataset: {_target_: mock}\n";
  Inputs inputs;
  for (const std::string& file : files(folder, ".yaml")) {
    Inputs sections;
    std::istringstream lines(file);
    for (std::string line; std::getline(lines, line);) {
      line.resize(std::min(line.find('#'), line.size()));
      line.resize(line.find_last_not_of(' ') + 1);
      if (line.empty()) continue;
      if (line[0] != ' ') sections.emplace_back();
      sections.back() += line + "\n";
    }
    std::string whole;
    for (const std::string& section : sections) {
      whole += section;
      inputs.push_back(section);
      if (!section.starts_with("step_scheduler:")) inputs.back() += steps;
      if (!section.starts_with("dataset:")) inputs.back() += dataset;
    }
    inputs.push_back(whole);
  }
  return inputs;
}

/// Makes ids of a post-processor those of tokens that are there.
void limit_ids(Json& value, int highest) {
  if (value.is_number_integer()) value = std::min(value.get<int>(), highest);
  if (value.is_structured())
    for (Json& item : value) limit_ids(item, highest);
}

/// Tokenizers with a few tokens instead of their own.
Inputs tokenizers(const fs::path& folder) {
  const Json vocabulary = parse_json(
      R"({"<unk>":0,"<s>":1,"</s>":2,"H":3,"e":4,"l":5,"o":6,"ll":7,"ell":8,"Ġ":9,"▁":10,"<0xC3>":11,"Ã":12})",
      "vocab");
  Inputs inputs;
  for (const std::string& file : files(folder, "tokenizer.json")) {
    Json tokenizer = shortened(parse_json(file, "golden"));
    Json& model = tokenizer["model"];
    const bool legacy = model["merges"].at(0).is_string();
    model["vocab"] = vocabulary;
    model["merges"] =
        parse_json(legacy ? R"(["#version: 0.2","l l","e ll"])" : R"([["l","l"],["e","ll"]])", "merges");
    auto next = static_cast<int>(vocabulary.size());
    Json added = Json::array();
    for (Json token : tokenizer["added_tokens"]) {
      if (added.size() == 3) break;
      const auto same = vocabulary.find(token["content"]);
      token["id"] = same == vocabulary.end() ? Json(next++) : *same;
      added.push_back(token);
    }
    tokenizer["added_tokens"] = added;
    if (tokenizer.contains("post_processor")) limit_ids(tokenizer["post_processor"], 2);
    inputs.push_back(dump_json(tokenizer, -1));
  }
  return inputs;
}

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Headers of files with 4,096 bytes of tensors, of which one is empty and one a number.
Inputs headers() {
  Inputs inputs;
  for (
      const std::string& tensors :
      {R"("a":{"dtype":"F32","shape":[32,32],"data_offsets":[0,4096]})",
       R"("a.b":{"dtype":"BF16","shape":[2,1023],"data_offsets":[0,4092]},"c":{"dtype":"I32","shape":[],"data_offsets":[4092,4096]})",
       R"("d":{"dtype":"F4","shape":[8192],"data_offsets":[0,4096]},"e":{"dtype":"F8_E4M3","shape":[7,0],"data_offsets":[4096,4096]})",
       R"("__metadata__":{"format":"pt"},"g":{"dtype":"F64","shape":[1,512],"data_offsets":[0,4096]})"}) {
    std::string bytes;
    append(bytes, std::uint64_t{tensors.size() + 2});
    inputs.push_back(bytes + "{" + tensors + "}");
  }
  return inputs;
}

/// Indexes of 1, 3 and 20 sequences, with ids of each type.
Inputs indexes() {
  Inputs inputs;
  for (const int code : {1, 2, 3, 4, 5, 8})
    for (const std::int64_t sequences : {1, 3, 20}) {
      std::string bytes("MMIDIDX\0\0", 9);
      append(bytes, std::uint64_t{1});
      append(bytes, static_cast<std::uint8_t>(code));
      append(bytes, static_cast<std::uint64_t>(sequences));
      append(bytes, static_cast<std::uint64_t>(sequences + 1));
      for (std::int64_t i = 0; i < sequences; ++i) append(bytes, static_cast<std::int32_t>(5 + i % 7));
      for (std::int64_t i = 0; i < sequences; ++i) append(bytes, 80 * i);
      for (std::int64_t i = 0; i <= sequences; ++i) append(bytes, i);
      inputs.push_back(bytes);
    }
  return inputs;
}

Inputs adapters(const fs::path& goldens) {
  Inputs inputs = documents(goldens, "adapter_config.json");
  inputs.push_back(inputs.at(0) + std::string("\0{}", 3));
  for (const std::string& config : documents(goldens, "automodel_peft_config.json"))
    inputs.push_back(inputs[0] + std::string(1, '\0') + config);
  return inputs;
}

Inputs configs(const fs::path& source) {
  Inputs inputs = documents(source / "configs", "config.json");
  for (const std::string& config : documents(source / "tests/goldens", "config.json"))
    if (config.find("nemotron") != std::string::npos || config.find("Nemotron") != std::string::npos)
      inputs.push_back(config);
  return inputs;
}

Inputs inputs_of(const std::string& fuzzer, const fs::path& source) {
  const fs::path goldens = source / "tests/goldens";
  if (fuzzer == "jinja") return templates(source);
  if (fuzzer == "recipe") return recipes(source / "configs");
  if (fuzzer == "tokenizer") return tokenizers(goldens / "tokenizer");
  if (fuzzer == "safetensors") return headers();
  if (fuzzer == "megatron") return indexes();
  if (fuzzer == "adapter") return adapters(goldens);
  require(fuzzer == "config", "want the name of a fuzzer, got ", fuzzer);
  return configs(source);
}

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-';
}

/// Names and numbers, in quotes where they are, and values that are seldom thought of.
std::string words_of(const Inputs& inputs) {
  std::set<std::string> words{"null",
                              "true",
                              "false",
                              "NaN",
                              "-Infinity",
                              "-1",
                              "1e308",
                              "1e-320",
                              "4294967296",
                              "9223372036854775807",
                              "18446744073709551616",
                              "[]",
                              "{}",
                              "\\\"\\\""};
  for (const std::string& input : inputs)
    for (std::size_t begin = 0, end = 0; begin < input.size(); begin = end + 1) {
      for (end = begin; end < input.size() && is_word(input[end]);) ++end;
      if (end - begin < 2 || end - begin > 40) continue;
      const std::string word = input.substr(begin, end - begin);
      const bool quoted = begin > 0 && input[begin - 1] == '"' && end < input.size() && input[end] == '"';
      words.insert(quoted ? "\\\"" + word + "\\\"" : word);
    }
  std::string lines;
  for (const std::string& word : words) lines += cat('"', word, "\"\n");
  return lines;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: corpus SOURCE FUZZER LONGEST FOLDER\n");
    return 2;
  }
  try {
    const Inputs inputs = inputs_of(argv[2], argv[1]);
    const std::size_t longest = std::stoul(argv[3]);
    const fs::path folder = argv[4];
    testing::spit(folder / "dictionary", words_of(inputs));
    int number = 0;
    for (const std::string& input : inputs)
      if (input.size() <= longest) testing::spit(folder / "corpus" / cat("golden", number++), input);
    expect(number > 0, "no goldens for ", argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "corpus: %s\n", error.what());
    return 1;
  }
}
