#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "data/chat/end_of_turn.h"
#include "data/chat/template_files.h"
#include "data/tokenizer/tokenizer.h"
#include "train/commands/chat_variables.h"
#include "train/commands/commands.h"
#include "train/commands/conversation.h"
#include "train/commands/lines.h"
#include "train/generate/generate.h"
#include "train/model_io/find_model.h"
#include "train/model_io/model_io.h"
#include "train/recipe/files.h"
#include "train/tokens/token_ids.h"

namespace nemocube {
namespace {

struct GenerateArguments {
  std::filesystem::path model, adapter, tokenizer, prompt_file;
  std::string prompt, dtype, device, system, chat_template, now;
  std::vector<std::string> variables;
  bool json = false, ignore_eos = false, special = false, chat = false;
  GenerateOptions generate;
};

struct Prompts {
  std::vector<std::string> texts;
  std::vector<std::vector<std::int64_t>> ids;
};

Prompts read_prompts(const GenerateArguments& options, const Tokenizer& tokenizer) {
  Prompts prompts;
  const auto add = [&](const std::string& text) {
    prompts.texts.push_back(text);
    prompts.ids.push_back(tokenizer.encode(text, true));
    require(!prompts.ids.back().empty(),
            "the prompt has no tokens, and this tokenizer puts none in front of it");
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

/// What a model needs to generate. What can be wrong with the options is found before the weights are read.
struct Generator {
  explicit Generator(GenerateArguments& options)
      : dtype(options.dtype.empty() ? std::nullopt : std::optional(parse_weight_dtype(options.dtype))),
        device((check_generate_options(options.generate), choose_device(options.device, model_operations()))),
        found(find_model_and_adapter(options.model, options.adapter)),
        tokenizer_file(options.tokenizer.empty() ? folder_with_tokenizer()
                                                 : find_tokenizer(options.tokenizer)),
        tokenizer(Tokenizer::load(tokenizer_file)) {}

  LoadedModel load(GenerateArguments& options) const {
    const OpenedModel source(found.model);
    LoadedModel loaded = load_model(source, dtype, device, with_adapter(source, found.adapter));
    check_vocabulary(tokenizer, loaded.model->config().vocab_size);
    if (!options.ignore_eos)
      options.generate.stop_ids = stop_ids(tokenizer, loaded.model->config(), found.generation_folder());
    return loaded;
  }

  /// An adapter's directory may have one of its own.
  std::filesystem::path folder_with_tokenizer() const {
    const bool own = !found.adapter.empty() && std::filesystem::exists(found.adapter / "tokenizer.json");
    std::error_code unclear;  // what is there and cannot be reached has its own message
    require(own || std::filesystem::exists(found.model / "tokenizer.json", unclear) || unclear,
            found.model.string(), ": has no tokenizer.json; name the tokenizer with --tokenizer");
    return own ? found.adapter : found.model;
  }

  std::optional<DType> dtype;
  Device device;
  ModelAndAdapter found;
  std::filesystem::path tokenizer_file;
  Tokenizer tokenizer;
};

void run_chat(GenerateArguments options) {
  ChatSettings settings;
  check_utf8("--system", options.system);
  settings.system = options.system;
  settings.show_special = options.special;
  const Moment now = moment_of_option(options.now);
  for (const std::string& variable : options.variables) set_variable(settings.variables, variable);
  const Generator generator(options);
  ChatTemplate chat_template = load_chat_template(
      folder_of(generator.tokenizer_file),
      options.chat_template.empty() ? std::nullopt : std::optional(options.chat_template), false);
  chat_template.set_time(now);
  const LoadedModel loaded = generator.load(options);
  settings.generate = options.generate;
  auto& stops = settings.generate.stop_ids;
  const auto end = end_of_turn(chat_template, generator.tokenizer, stops);
  if (end && !options.ignore_eos) stops.push_back(*end);
  ChatSession session(*loaded.parallel, generator.tokenizer, std::move(chat_template), std::move(settings));
  hold_conversation(std::cin, std::cout, session, isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1);
}

// The text of a single prompt is printed token by token. With several prompts or --json, everything is
// printed when the last text has ended.
void run(GenerateArguments options) {
  const Generator generator(options);
  const Tokenizer& tokenizer = generator.tokenizer;
  const auto [prompts, ids] = read_prompts(options, tokenizer);
  const LoadedModel loaded = generator.load(options);

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
  const auto results = generate(*loaded.parallel, ids, options.generate, print,
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
  auto o = std::make_shared<GenerateArguments>();
  Command* command = app.add_subcommand("generate", "Continue texts with a model");
  command->add_option("--model", o->model, "Hugging Face directory, checkpoint or directory of a run")
      ->required();
  add_adapter_option(*command, o->adapter);
  command->add_option("--tokenizer", o->tokenizer,
                      "tokenizer.json or its directory; default: the model's own");
  auto* prompt = command->add_option("--prompt", o->prompt, "text to continue");
  auto* file = command->add_option("--prompt-file", o->prompt_file,
                                   "file with one prompt in each line; - is standard input");
  prompt->excludes(file);
  auto* chat =
      command->add_flag("--chat", o->chat,
                        "hold a conversation by the tokenizer's chat template: each line of standard "
                        "input is a message; /clear begins anew, /quit or the end of input ends it");
  chat->excludes(prompt)->excludes(file);
  command->add_option("--system", o->system, "what the system says at the beginning of a conversation")
      ->needs(chat);
  add_template_options(*command, chat, o->chat_template, o->variables, o->now);
  command
      ->add_option("--max-new-tokens", o->generate.max_new_tokens,
                   "end each text, or answer, after so many tokens")
      ->capture_default_str()
      ->check(whole_number());
  command
      ->add_option("--temperature", o->generate.temperature,
                   "0: always the likeliest token (greedy); 1: draw as the model's probabilities say; above: "
                   "more evenly")
      ->capture_default_str()
      ->check(number());
  command->add_option("--top-k", o->generate.top_k, "draw among the k likeliest tokens only; 0: among all")
      ->capture_default_str()
      ->check(whole_number());
  command
      ->add_option("--top-p", o->generate.top_p,
                   "then among the fewest tokens whose probabilities add up to this")
      ->capture_default_str()
      ->check(number());
  command->add_option("--seed", o->generate.seed, "of the draws; the same seed gives the same texts")
      ->capture_default_str()
      ->check(whole_number());
  command->add_option("--dtype", o->dtype, "compute in f32, bf16 or f64; default: as config.json says");
  add_device_option(*command, o->device, "cpu");
  command->add_flag("--ignore-eos", o->ignore_eos,
                    "do not stop at end-of-sequence tokens, nor at the end of a turn of the chat template");
  command->add_flag("--special", o->special, "show special tokens, such as <|im_end|>, in the text");
  command
      ->add_flag("--json", o->json,
                 "print one line of JSON for each prompt: prompt, text, ids of the new tokens")
      ->excludes(chat);
  command->callback([o, prompt, file] {
    if (o->chat) return run_chat(*o);
    require(prompt->count() + file->count() == 1, "generate: give --prompt, --prompt-file or --chat");
    run(*o);
  });
}

}  // namespace nemocube
