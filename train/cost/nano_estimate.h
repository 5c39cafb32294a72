#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "train/bench/counted_cases.h"
#include "train/bench/kernel_report.h"

/// The time that a training step of Nemotron 3 Nano could take on an H100, from counted kernels and from the
/// bytes and operations of matrix products. Nothing is measured.
namespace nemocube {

struct EstimateOptions {
  std::int64_t tokens = 8192;        ///< of a rank: one sequence
  double product_fraction = 0.7;     ///< of the peak rate that matrix products are taken to reach
  std::int64_t optimizer_ranks = 8;  ///< that share parameters and states of the optimizer
  GpuRates rates = {};
};

/// The time of a kernel, or of the products of a layer, in one pass forward and backward.
struct Cost {
  std::string part;  ///< operation or layer
  std::string name;  ///< kernel, or "products"
  double seconds = 0;
  std::string bound;
};

/// A matrix product [tokens, in] x [in, out] and its two gradients. Each takes the longer of its bytes (bf16;
/// a weight's gradient is f32, read and written) and of its operations at product_fraction of the peak.
Cost linear_products(const std::string& layer, double tokens, double in, double out,
                     const EstimateOptions& o);

/// 'M', 'E' and '*' of hybrid_override_pattern, with residual addition and norm, forward and backward, all
/// experts on the rank and chosen equally often. Counted kernels grow with the tokens, kernels of attention
/// with the pairs of query and key. Grouped products are kernels: they take the longer time of the counters
/// and of linear_products(). Throws std::logic_error for other letters.
std::vector<Cost> costs_of_block(char kind, const CountedCases& counted, const EstimateOptions& o = {});
/// Embedding, last norm, head and loss, forward and backward.
std::vector<Cost> costs_of_ends(const CountedCases& counted, const EstimateOptions& o = {});
/// AdamW and the norm of all gradients, of the rank's share.
std::vector<Cost> costs_of_optimizer(const CountedCases& counted, const EstimateOptions& o = {});

double nano_parameters();
double total_seconds(const std::vector<Cost>& costs);
/// Costs of the blocks of a pattern. Costs of one part and name are added up; the longest come first.
std::vector<Cost> costs_of_pattern(std::string_view pattern, const CountedCases& counted,
                                   const EstimateOptions& o = {});

inline constexpr std::string_view nano_slice = "MEMEM*EM";
inline constexpr std::string_view nano_pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";

/// The section of docs/kernels.md: a table of the slice's kernels, the whole model, tokens a second beside
/// published figures.
std::string nano_estimate(const CountedCases& counted, const EstimateOptions& o = {});

}  // namespace nemocube
