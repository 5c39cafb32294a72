#include "core/error.h"
#include "train/commands/commands.h"
#include "train/recipe/names.h"

namespace nemocube {

DType parse_weight_dtype(const std::string& name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    if (cat(dtype) == name) return dtype;
  fail("--dtype: want f32, bf16 or f64, got '", name, "'");
}

void add_adapter_option(Command& command, std::filesystem::path& target) {
  command.add_option(
      "--adapter", target,
      "low-rank adapter to add to the model: PEFT directory, checkpoint or directory of a run");
}

void add_template_options(Command& command, Option* chat, std::string& chat_template,
                          std::vector<std::string>& variables, std::string& now) {
  command
      .add_option(
          "--chat-template", chat_template,
          "another template than the tokenizer's: a file, the name of one of its templates, or Jinja text")
      ->needs(chat);
  command
      .add_option("--set", variables,
                  "NAME=VALUE: a variable of the template, such as enable_thinking=false; JSON or text; may "
                  "be repeated")
      ->allow_extra_args(false)
      ->needs(chat);
  command
      .add_option(
          "--now", now,
          "the moment that the template shows as the present one (strftime_now), such as 2026-11-30 or "
          "2026-11-30T05:38+01:00; default: when the command starts")
      ->needs(chat);
}

void add_device_option(Command& command, std::string& target, const std::string& otherwise) {
  command.add_option(
      "--device", target,
      "cpu, cuda or auto (cuda if there is a device and every operation has CUDA kernels, else "
      "cpu); default: " +
          otherwise);
}

void add_share_device_option(Command& command, bool& target) {
  command.add_flag("--share-device", target, "several ranks of a node may compute on one CUDA device");
}

Device choose_device(const std::string& option, const std::vector<std::string_view>& operations) {
  return choose_device(option.empty() ? DeviceChoice::cpu : parse_device(option), operations,
                       "--device " + option);
}

void override_device(std::vector<std::string>& overrides, const std::string& option, bool share) {
  if (share) overrides.push_back("share_device=true");
  if (option.empty()) return;
  parse_device(option);
  overrides.push_back("device=" + option);
}

std::string asked_device(const Recipe& recipe, const std::string& option) {
  const std::string word = recipe::name_of_choice(recipe.device);
  return option.empty() ? cat(recipe.file, ": device: ", word) : "--device " + word;
}

}  // namespace nemocube
