#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "core/dtype.h"

/// The subcommands of `nemocube`. Each function adds one to the application, with its options and its work as
/// callback.
namespace nemocube {

/// The dtype an option --dtype names; Error unless it is f32, bf16 or f64.
DType parse_weight_dtype(const std::string& name);

/// Accepts 0, 1, ..., 2^63 - 1 alone: CLI11 takes the nearest integer for one that does not fit.
CLI::Validator whole_number();

void add_train_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_forward_command(CLI::App& app);
void add_convert_command(CLI::App& app);
void add_tokenize_command(CLI::App& app);
void add_inspect_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_grid_command(CLI::App& app);

}  // namespace nemocube
