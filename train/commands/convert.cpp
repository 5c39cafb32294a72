#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "core/log.h"
#include "data/hf/hf_config.h"
#include "data/hf/hf_weights.h"
#include "data/peft/merge.h"
#include "train/checkpoint/intact.h"
#include "train/commands/commands.h"
#include "train/commands/verify_copy.h"
#include "train/datasets/recipe_datasets.h"
#include "train/logging/progress.h"
#include "train/model_io/base_model.h"
#include "train/model_io/find_model.h"

namespace nemocube {
namespace {

struct ConvertArguments {
  std::filesystem::path source, target, adapter;
  bool merge = false, verify = false;
  std::string dtype;
  std::optional<double> max_shard_gb;
};

/// The tokenizer, all of its files, and the ids that end a text are those that the adapter was trained with,
/// where its directory has them, as in a checkpoint of a whole model.
void use_files(std::map<std::string, std::string>& files, const std::map<std::string, std::string>& own) {
  const bool has_tokenizer = own.contains("tokenizer.json");
  if (has_tokenizer) std::erase_if(files, [](const auto& file) { return is_tokenizer_file(file.first); });
  for (const auto& [name, text] : own)
    if (name == "generation_config.json" || (has_tokenizer && is_tokenizer_file(name))) files[name] = text;
}

void run(const ConvertArguments& options) {
  require(!options.target.empty(), "convert: the name of the target directory is empty");
  require(!std::filesystem::exists(options.target) || std::filesystem::is_empty(options.target),
          options.target.string(), ": exists and is not empty; nothing was written");
  const auto [source, adapter] = find_model_and_adapter(options.source, options.adapter);
  require(options.merge || adapter.empty(), adapter.string(),
          " is an adapter; want --merge, which adds it to ", source.string());
  require(!options.merge || !adapter.empty(), "--merge: want an adapter, by --adapter or as the source");
  SaveOptions save;
  if (!options.dtype.empty()) save.dtype = parse_weight_dtype(options.dtype);
  if (options.max_shard_gb) {
    require(*options.max_shard_gb > 0 && *options.max_shard_gb <= 1e9,
            "--max-shard-gb: want a number above 0 and up to 1e9, got ", *options.max_shard_gb);
    save.most_shard_bytes = static_cast<std::int64_t>(std::ceil(*options.max_shard_gb * 1e9));
  }
  {
    if (!adapter.empty()) want_base_of_adapter(adapter, source);
    const std::string fault = fault_of_frozen_base(source);
    require(fault.empty(), fault);
    TaskProgress progress("checking files", "bytes");
    check_model_of_checkpoint(source, std::ref(progress));
    if (!adapter.empty()) check_model_of_checkpoint(adapter, std::ref(progress));
  }
  {
    TaskProgress progress("weights", "bytes");
    save.on_bytes = std::ref(progress);
    std::optional<PeftDirectory> merged;
    WeightChange change;
    if (!adapter.empty()) {
      merged.emplace(adapter, with_stored_mtp(read_hf_config(source)));
      change = merge_of(*merged);
      change.companions = [own = read_companion_files(adapter)](auto& files) { use_files(files, own); };
    }
    copy_hf_model(source, options.target, save, change);
  }
  log_info("wrote ", options.target.string());
  if (options.verify) verify_copy(source, adapter, options.target);
}

}  // namespace

void add_convert_command(Command& app) {
  auto o = std::make_shared<ConvertArguments>();
  Command* command = app.add_subcommand(
      "convert", "Copy a model (a Hugging Face directory or a run's checkpoint) to a new directory");
  command->add_option("source", o->source, "Hugging Face directory, checkpoint or directory of a run")
      ->required();
  command->add_option("target", o->target, "directory to create")->required();
  command->add_option("--adapter", o->adapter,
                      "low-rank adapter of the model: PEFT directory, checkpoint or run");
  command->add_flag("--merge", o->merge, "write W + s B A in the place of each adapted weight W");
  command->add_flag("--verify", o->verify,
                    "then compare the logits of a few rows of source and copy; a model at a time in memory");
  command->add_option("--dtype", o->dtype,
                      "f32, bf16 or f64; default: each tensor as in the source, f16 as f32");
  command->add_option("--max-shard-gb", o->max_shard_gb,
                      "cut the weights into files of at most this size (10^9 bytes)");
  command->callback([o] { run(*o); });
}

}  // namespace nemocube
