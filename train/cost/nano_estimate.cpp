#include "train/cost/nano_estimate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "core/error.h"

namespace nemocube {
namespace {

// Sizes of Nemotron 3 Nano.
constexpr double hidden = 2688, vocabulary = 131072;
constexpr double mamba_inner = 4096, conv_channels = 6144, mamba_heads = 64, taps = 4;
constexpr double query_width = 32 * 128, key_width = 2 * 128;
constexpr double expert_count = 128, chosen_experts = 6, expert_width = 1856, shared_width = 3712;
constexpr double in_proj_width = mamba_inner + conv_channels + mamba_heads;

constexpr double bf16_bytes = 2, f32_bytes = 4;
constexpr const char* name_of_products = "products of cuBLAS";

double count_of(std::string_view pattern, char kind) {
  return static_cast<double>(std::ranges::count(pattern, kind));
}

struct BoundTime {
  double seconds = 0;
  const char* bound = "";
};

BoundTime of_bytes(double bytes, const EstimateOptions& o) { return {bytes / o.rates.dram_bytes, "DRAM"}; }

BoundTime of_product(double bytes, double flops, double peak, const EstimateOptions& o) {
  const BoundTime memory = of_bytes(bytes, o), arithmetic{flops / (o.product_fraction * peak), "operations"};
  return arithmetic.seconds >= memory.seconds ? arithmetic : memory;
}

Cost sum_of(const std::string& part, const std::string& name, const std::vector<BoundTime>& times) {
  Cost cost{part, name, 0, times.front().bound};
  for (const BoundTime& time : times) {
    cost.seconds += time.seconds;
    if (cost.bound.find(time.bound) == std::string::npos) cost.bound += cat(", ", time.bound);
  }
  return cost;
}

/// Gathers the costs of a block.
class Costs {
 public:
  Costs(const CountedCases& counted, const EstimateOptions& o) : counted_(counted), o_(o) {}

  double tokens() const { return static_cast<double>(o_.tokens); }

  /// Kernels of a case, whose work grows with the size `by`, at `size` of it.
  void kernels(const std::string& op, const std::string& variant, const std::string& by, double size) {
    scaled(op, variant, size / counted_.find(op, variant).size(by));
  }
  void scaled(const std::string& op, const std::string& variant, double times) {
    for (const CountedKernel& k : counted_.find(op, variant).kernels)
      list_.push_back({op, k.name, times * k.seconds, k.bound});
  }
  /// Kernels that walk along a sequence stay in the blocks that they have where they were counted.
  void scan() {
    const CountedCase& c = counted_.find("ssd_scan", "chunked forward+backward");
    const double times = tokens() / c.size("tokens");
    for (const CountedKernel& k : c.kernels)
      list_.push_back(
          {c.op, k.name, times * (k.name.starts_with("walk_") ? k.placed_seconds : k.seconds), k.bound});
  }
  void norm() { kernels("rmsnorm", "fused forward+backward", "rows", tokens()); }
  void relu2(double elements) {
    for (const char* variant : {"forward", "backward"}) {
      const CountedCase& c = counted_.find("relu2", variant);
      scaled("relu2", variant, elements / (c.size("rows") * c.size("cols")));
    }
  }
  /// Kernels that DRAM bounds grow with the tokens, the others with the pairs of query and key.
  void attention() {
    for (const char* variant : {"tiled forward", "tiled backward"}) {
      const CountedCase& c = counted_.find("attention", variant);
      const auto pairs = [](double length) { return length * (length + 1) / 2; };
      const double queries = c.size("queries"), one = 1 / c.size("sequences");
      for (const CountedKernel& k : c.kernels) {
        const double times = k.bound == "DRAM" ? tokens() / queries : pairs(tokens()) / pairs(queries);
        list_.push_back({c.op, k.name, times * one * k.seconds, k.bound});
      }
    }
  }
  void linear(const std::string& layer, double in, double out) {
    list_.push_back(linear_products(layer, tokens(), in, out, o_));
  }
  void add(const Cost& cost) { list_.push_back(cost); }

  /// Up and down of all experts. Both have the same operations and bytes as the case counted, but for its
  /// number of rows.
  void grouped() {
    const double rows = tokens() * chosen_experts / expert_count;
    const double row_bytes = bf16_bytes * (hidden + expert_width), weight = hidden * expert_width;
    for (const auto& [variant, weight_bytes] :
         {std::pair{"forward, even rows", bf16_bytes}, std::pair{"backward input, even rows", bf16_bytes},
          std::pair{"backward weight, even rows", 2 * f32_bytes}}) {
      const CountedCase& c = counted_.find("grouped_linear", variant);
      const double times = 2 * expert_count;
      const BoundTime least =
          of_product(rows * row_bytes + weight_bytes * weight, 2 * rows * weight, o_.rates.tensor_flops, o_);
      double counted = 0;
      for (const CountedKernel& k : c.kernels) counted += k.seconds;
      const double grown = counted * rows / (c.size("rows") / c.size("experts")) / c.size("experts");
      // One kernel, whose time is stretched where products do not reach their peak.
      const double stretch = std::max(1.0, least.seconds / grown);
      for (const CountedKernel& k : c.kernels)
        list_.push_back({"grouped_linear", k.name, times * grown * stretch * k.seconds / counted,
                         stretch > 1 ? least.bound : k.bound});
    }
  }
  /// Products of bf16 terms (ops/matmul/matmul_kernels.h): with three of the weight, whose products are added
  /// then; with six of the gradient and the weight; with three of the gradient.
  void gate() {
    const double t = tokens(), weight = hidden * expert_count, flops = 2 * t * weight,
                 peak = o_.rates.tensor_flops, x = bf16_bytes * t * hidden, logits = t * expert_count;
    list_.push_back(
        sum_of("router gate", name_of_products,
               {of_product(x + 3 * (bf16_bytes * weight + f32_bytes * logits), 3 * flops, peak, o_),
                of_bytes((3 + 1) * f32_bytes * logits, o_),
                of_product(6 * bf16_bytes * (logits + weight) + x, 6 * flops, peak, o_),
                of_product(3 * (bf16_bytes * logits + f32_bytes * weight) + x, 3 * flops, peak, o_)}));
  }
  std::vector<Cost> take() { return std::move(list_); }

 private:
  const CountedCases& counted_;
  const EstimateOptions& o_;
  std::vector<Cost> list_;
};

std::string decimals(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

/// "16,789"
std::string thousands(double value) {
  std::string text = decimals(value, 0);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3)
    text.insert(static_cast<std::size_t>(at), ",");
  return text;
}

std::vector<Cost> merged(const std::vector<Cost>& costs) {
  std::vector<Cost> all;
  for (const Cost& cost : costs) {
    const auto same =
        std::ranges::find_if(all, [&](const Cost& c) { return c.part == cost.part && c.name == cost.name; });
    if (same == all.end()) {
      all.push_back(cost);
      continue;
    }
    same->seconds += cost.seconds;
    if (same->bound.find(cost.bound) == std::string::npos) same->bound += cat(", ", cost.bound);
  }
  std::ranges::stable_sort(all, std::ranges::greater{}, &Cost::seconds);
  return all;
}

std::string table_of(const std::vector<Cost>& costs) {
  const double all = total_seconds(costs);
  std::string text = "| part | kernel | us | share | bound |\n|---|---|--:|--:|---|\n";
  for (const Cost& c : costs) {
    // Words, not a kernel.
    const bool words = c.name.find('<') == std::string::npos && c.name.find(' ') != std::string::npos;
    const std::string name = words ? c.name : cat('`', c.name, '`');
    text += cat("| ", c.part, " | ", name, " | ", decimals(c.seconds * 1e6, c.seconds < 1e-5 ? 1 : 0), " | ",
                decimals(100 * c.seconds / all, 1), " % | ", c.bound, " |\n");
  }
  return text;
}

}  // namespace

Cost linear_products(const std::string& layer, double tokens, double in, double out,
                     const EstimateOptions& o) {
  const double rows = bf16_bytes * tokens * (in + out), weight = in * out, flops = 2 * tokens * weight;
  const double peak = o.rates.tensor_flops;
  const BoundTime forward = of_product(rows + bf16_bytes * weight, flops, peak, o);
  return sum_of(layer, name_of_products,
                {forward, forward, of_product(rows + 2 * f32_bytes * weight, flops, peak, o)});
}

std::vector<Cost> costs_of_block(char kind, const CountedCases& counted, const EstimateOptions& o) {
  Costs costs(counted, o);
  const double t = costs.tokens();
  costs.norm();
  switch (kind) {
    case 'M':
      costs.linear("in_proj", hidden, in_proj_width);
      costs.kernels("causal_conv1d", "forward+backward", "tokens", t);
      costs.scan();
      costs.kernels("gated_rmsnorm", "forward+backward", "tokens", t);
      costs.linear("out_proj", mamba_inner, hidden);
      break;
    case '*':
      costs.linear("q_proj", hidden, query_width);
      costs.linear("k_proj", hidden, key_width);
      costs.linear("v_proj", hidden, key_width);
      costs.attention();
      costs.linear("o_proj", query_width, hidden);
      break;
    case 'E':
      costs.gate();
      for (const char* variant : {"choice", "gradient"}) costs.kernels("router", variant, "tokens", t);
      for (const char* variant : {"order", "permute forward+backward", "unpermute forward+backward"})
        costs.kernels("permute", variant, "tokens", t);
      costs.grouped();
      costs.relu2(t * chosen_experts * expert_width + t * shared_width);
      costs.linear("shared expert, up", hidden, shared_width);
      costs.linear("shared expert, down", shared_width, hidden);
      // Three sums of two; the input and its gradient between bf16 and f32.
      costs.add(sum_of("sums and conversions", "by their bytes",
                       {of_bytes(t * hidden * (3 * 3 * bf16_bytes + 2 * (bf16_bytes + f32_bytes)), o)}));
      break;
    default:
      expect(false, "costs_of_block: M, E or *");
  }
  return costs.take();
}

std::vector<Cost> costs_of_ends(const CountedCases& counted, const EstimateOptions& o) {
  Costs costs(counted, o);
  costs.kernels("embedding", "forward+backward", "tokens", costs.tokens());
  costs.norm();
  costs.linear("head", hidden, vocabulary);
  costs.kernels("cross_entropy", "losses and gradient of a chunk", "rows", costs.tokens());
  return costs.take();
}

std::vector<Cost> costs_of_optimizer(const CountedCases& counted, const EstimateOptions& o) {
  Costs costs(counted, o);
  const double share = nano_parameters() / static_cast<double>(o.optimizer_ranks);
  costs.kernels("adamw", "with bf16 copy", "elements", share);
  costs.kernels("global_norm", "norm", "elements",
                share * f32_bytes / bf16_bytes);  // counted of bf16, gradients are f32
  return costs.take();
}

double nano_parameters() {
  const double mamba = hidden * (in_proj_width + mamba_inner) + conv_channels * (taps + 1) + 3 * mamba_heads +
                       mamba_inner + hidden;
  const double attention = 2 * hidden * (query_width + key_width) + hidden;
  const double moe = (2 * hidden * expert_width + hidden) * expert_count + 2 * hidden * shared_width + hidden;
  return count_of(nano_pattern, 'M') * mamba + count_of(nano_pattern, '*') * attention +
         count_of(nano_pattern, 'E') * moe + 2 * vocabulary * hidden + hidden;
}

double total_seconds(const std::vector<Cost>& costs) {
  double sum = 0;
  for (const Cost& cost : costs) sum += cost.seconds;
  return sum;
}

std::vector<Cost> costs_of_pattern(std::string_view pattern, const CountedCases& counted,
                                   const EstimateOptions& o) {
  std::vector<Cost> all;
  for (const char kind : pattern)
    for (const Cost& cost : costs_of_block(kind, counted, o)) all.push_back(cost);
  return merged(all);
}

std::string nano_estimate(const CountedCases& counted, const EstimateOptions& o) {
  const auto tokens = static_cast<double>(o.tokens);
  const std::vector<Cost> slice = costs_of_pattern(nano_slice, counted, o);
  std::string text = cat("### Slice ", nano_slice, "\n\n", table_of(slice), "\n");
  const double slice_seconds = total_seconds(slice);
  text += cat("All: ", decimals(slice_seconds * 1e3, 2), " ms, ", thousands(tokens / slice_seconds),
              " tokens/s of the slice.\n\n### Whole model\n\n",
              "| part | in the slice | in the model | ms of one | ms of the model | share |\n",
              "|---|--:|--:|--:|--:|--:|\n");
  struct Part {
    const char* name;
    double in_slice, in_model, seconds;
  };
  std::vector<Part> parts;
  for (const auto& [kind, name] :
       {std::pair{'M', "Mamba block"}, std::pair{'E', "MoE block"}, std::pair{'*', "attention block"}})
    parts.push_back({name, count_of(nano_slice, kind), count_of(nano_pattern, kind),
                     total_seconds(costs_of_block(kind, counted, o))});
  parts.push_back({"embedding, last norm, head, loss", 0, 1, total_seconds(costs_of_ends(counted, o))});
  parts.push_back({"optimizer", 0, 1, total_seconds(costs_of_optimizer(counted, o))});
  double model = 0;
  for (const Part& p : parts) model += p.in_model * p.seconds;
  for (const Part& p : parts)
    text += cat("| ", p.name, " | ", p.in_slice, " | ", p.in_model, " | ", decimals(p.seconds * 1e3, 2),
                " | ", decimals(p.in_model * p.seconds * 1e3, 1), " | ",
                decimals(100 * p.in_model * p.seconds / model, 1), " % |\n");
  const double without = model - parts.back().in_model * parts.back().seconds;
  text += cat("\nAll: ", decimals(model * 1e3, 1), " ms for ", o.tokens, " tokens. Without the optimizer, ",
              decimals(without * 1e3, 1), " ms: ", thousands(tokens / without),
              " tokens/s, for steps of many microbatches.\n\n",
              "| | tokens/s a GPU | how |\n|---|--:|---|\n| nemocube | ", thousands(tokens / model),
              " | **estimate**, nothing timed: no communication, no launches, no waiting; sequences of ",
              o.tokens, " tokens, experts chosen equally often |\n",
              "| NeMo AutoModel | 16,789 | published: 8 H100, bf16, 4,096 tokens |\n"
              "| Megatron-Bridge | 14,195 | published: 16 H100, bf16, 8,192 tokens, forced balance |\n");
  return text;
}

}  // namespace nemocube
