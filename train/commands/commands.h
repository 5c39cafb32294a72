#pragma once
#include <string>
#include <vector>

#include "core/dtype.h"
#include "train/commands/command_line.h"

/// The subcommands of `nemocube`. Each function adds one to the application, with its options and its work as
/// callback.
namespace nemocube {

struct GridDimension;  // parallel/grid/hypercube_grid.h

/// The dtype an option --dtype names; Error unless it is f32, bf16 or f64.
DType parse_weight_dtype(const std::string& name);
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

}  // namespace nemocube
