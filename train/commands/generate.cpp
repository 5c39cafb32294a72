#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "data/tokenizer/tokenizer.h"
#include "train/commands/commands.h"
#include "train/commands/lines.h"
#include "train/generate/generate.h"
#include "train/model_io/model_io.h"
#include "train/tokens/token_ids.h"

namespace nemocube {
namespace {

struct Options {
  std::filesystem::path model, tokenizer, prompt_file;
  std::string prompt, dtype;
  bool json = false, ignore_eos = false, special = false;
  GenerateOptions generate;
};

struct Prompts {
  std::vector<std::string> texts;
  std::vector<std::vector<std::int64_t>> ids;
};

Prompts read_prompts(const Options& options, const Tokenizer& tokenizer) {
  Prompts prompts;
  const auto add = [&](const std::string& text) {
    prompts.texts.push_back(text);
    prompts.ids.push_back(tokenizer.encode(text, true));
    require(!prompts.ids.back().empty(), "the prompt has no tokens");
  };
  if (options.prompt_file.empty()) {
    add(options.prompt);
    return prompts;
  }
  for_each_line(options.prompt_file,
                [&](const std::string& line) { add(line.substr(0, line.size() - line.ends_with('\r'))); });
  require(!prompts.texts.empty(), options.prompt_file.string(), ": holds no prompt (one a line)");
  return prompts;
}

// One prompt in a terminal appears as it is made; several, or --json, when all are done.
void run(Options options) {
  const auto dtype = options.dtype.empty() ? std::nullopt : std::optional(parse_weight_dtype(options.dtype));
  check_generate_options(options.generate);
  const Tokenizer tokenizer = Tokenizer::load(options.tokenizer.empty() ? options.model : options.tokenizer);
  const auto [prompts, ids] = read_prompts(options, tokenizer);
  LoadedModel loaded = load_model(options.model, dtype);
  check_vocabulary(tokenizer, loaded.model->config().vocab_size);
  if (!options.ignore_eos)
    options.generate.stop_ids = stop_ids(tokenizer, loaded.model->config(), options.model);

  const bool stream = prompts.size() == 1 && !options.json;
  StreamDecoder decoder(tokenizer, !options.special);
  OnToken print;
  if (stream) {
    std::cout << prompts[0] << std::flush;
    print = [&](std::size_t, std::int64_t id) {
      std::cout << decoder.push(id) << std::flush;
      return false;
    };
  }
  std::optional<TaskProgress> progress;
  if (!stream) progress.emplace("generating", "new tokens at most");
  const auto results = generate(*loaded.model, ids, options.generate, print,
                                progress ? OnProgress(std::ref(*progress)) : OnProgress());
  progress.reset();
  if (stream) {
    std::cout << decoder.finish() << '\n';
    return;
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::string text = tokenizer.decode(results[i], !options.special);
    if (options.json)
      std::cout << nlohmann::json({{"prompt", prompts[i]}, {"text", text}, {"ids", results[i]}}).dump()
                << '\n';
    else
      std::cout << prompts[i] << text << '\n';
  }
}

}  // namespace

void add_generate_command(Command& app) {
  auto o = std::make_shared<Options>();
  Command* command = app.add_subcommand("generate", "Continue prompts, greedy or sampled");
  command->add_option("--model", o->model, "Hugging Face model directory")->required();
  command->add_option("--tokenizer", o->tokenizer, "tokenizer.json or its directory; default: the model's");
  auto* prompt = command->add_option("--prompt", o->prompt, "text to continue");
  auto* file = command->add_option("--prompt-file", o->prompt_file, "file with one prompt a line, or -");
  prompt->excludes(file);
  command->add_option("--max-new-tokens", o->generate.max_new_tokens)
      ->capture_default_str()
      ->check(whole_number());
  command->add_option("--temperature", o->generate.temperature, "0: greedy")
      ->capture_default_str()
      ->check(number());
  command->add_option("--top-k", o->generate.top_k, "keep the k most likely tokens; 0: all")
      ->capture_default_str()
      ->check(whole_number());
  command->add_option("--top-p", o->generate.top_p, "keep the fewest tokens that reach this mass")
      ->capture_default_str()
      ->check(number());
  command->add_option("--seed", o->generate.seed)->capture_default_str()->check(whole_number());
  command->add_option("--dtype", o->dtype, "f32, bf16 or f64; default: what config.json names");
  command->add_flag("--ignore-eos", o->ignore_eos, "do not stop at end-of-sequence tokens");
  command->add_flag("--special", o->special, "print special tokens");
  command->add_flag("--json", o->json, "one JSON object a prompt: prompt, text, ids");
  command->callback([o, prompt, file] {
    require(prompt->count() + file->count() == 1, "generate: give --prompt or --prompt-file");
    run(*o);
  });
}

}  // namespace nemocube
