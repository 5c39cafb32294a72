#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "train/commands/command_line.h"
#include "train/device/device_choice.h"

/// The subcommands of `nemocube`. Each function adds one to the application, with its options and its work as
/// callback.
namespace nemocube {

struct GridDimension;  // parallel/grid/hypercube_grid.h
struct Recipe;         // train/recipe/recipe.h

/// The dtype an option --dtype names; Error unless it is f32, bf16 or f64.
DType parse_weight_dtype(const std::string& name);

/// Option --device. `otherwise` says where to compute without it.
void add_device_option(Command& command, std::string& target, const std::string& otherwise);
/// Option --adapter.
void add_adapter_option(Command& command, std::filesystem::path& target);
/// Options --chat-template, --set NAME=VALUE and --now MOMENT, which need the option `chat`.
void add_template_options(Command& command, Option* chat, std::string& chat_template,
                          std::vector<std::string>& variables, std::string& now);
/// Option --share-device of commands that run on several ranks.
void add_share_device_option(Command& command, bool& target);
/// For commands with a model and no recipe: choose_device() with the value of --device, "" being cpu.
Device choose_device(const std::string& option, const std::vector<std::string_view>& operations);
/// For commands with a recipe: turns the options into overrides of the keys
/// `device` ("": no override) and `share_device`.
void override_device(std::vector<std::string>& overrides, const std::string& option, bool share);
/// The option or key that asked for the recipe's device, for messages.
std::string asked_device(const Recipe& recipe, const std::string& option);

/// Dimensions of a process grid, "tp=2,dp=4"; Error for another form.
std::vector<GridDimension> parse_dimensions(const std::string& text);

void add_train_command(Command& app);
void add_eval_command(Command& app);
void add_generate_command(Command& app);
void add_forward_command(Command& app);
void add_convert_command(Command& app);
void add_tokenize_command(Command& app);
void add_inspect_command(Command& app);
void add_bench_command(Command& app);
void add_grid_command(Command& app);
void add_plan_command(Command& app);
void add_report_command(Command& app);
void add_watch_command(Command& app);

}  // namespace nemocube
