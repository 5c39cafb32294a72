#include "model/config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/quote.h"

namespace nemocube {
namespace {
struct Row {
  BlockKind kind;
  char letter;
  std::string_view name;
};
constexpr std::array<Row, 4> kinds{{
    {BlockKind::mamba, 'M', "mamba"},
    {BlockKind::attention, '*', "attention"},
    {BlockKind::mlp, '-', "mlp"},
    {BlockKind::moe, 'E', "moe"},
}};
const Row& row(BlockKind kind) { return kinds[static_cast<std::size_t>(kind)]; }
}  // namespace

char letter_of(BlockKind kind) { return row(kind).letter; }
std::string_view name_of(BlockKind kind) { return row(kind).name; }

std::string to_pattern(std::span<const BlockKind> blocks) {
  std::string text;
  for (BlockKind kind : blocks) text += letter_of(kind);
  return text;
}

BlockPattern parse_pattern(std::string_view pattern) {
  BlockPattern parsed;
  std::vector<BlockKind>* blocks = &parsed.blocks;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char letter = pattern[i];
    if (letter == '|') continue;
    if (letter == '/') {
      blocks = &parsed.mtp.emplace_back();
      continue;
    }
    const auto known = std::ranges::find(kinds, letter, &Row::letter);
    if (known == kinds.end())
      fail("unknown letter '", excerpt(pattern.substr(i, 1)), "' at position ", i + 1, " of the pattern \"",
           excerpt(pattern), "\"; want M (mamba), * (attention), - (mlp), E (moe), | or /");
    blocks->push_back(known->kind);
  }
  return parsed;
}

std::vector<BlockKind> usual_mtp_blocks() { return {BlockKind::attention, BlockKind::moe}; }

bool NemotronHConfig::has(BlockKind kind) const {
  return count(kind) > 0 || (num_nextn_predict_layers > 0 && std::ranges::count(mtp_blocks, kind) > 0);
}

std::int64_t NemotronHConfig::count(BlockKind kind) const { return std::ranges::count(blocks, kind); }

namespace {
// With these bounds every product of sizes, and the bytes of optimizer state of all parameters, stay far
// below 2^63.
constexpr std::int64_t most_size = 1 << 24, most_width = 1 << 26, most_layers = 1 << 14,
                       most_parameters = std::int64_t{1} << 50;

void check_size(const char* key, std::int64_t value, std::int64_t low = 1) {
  require(value >= low, key, ": want at least ", low, ", got ", value);
  require(value <= most_size, key, ": want at most ", most_size, ", got ", value);
}

void check_width(const char* keys, std::int64_t a, std::int64_t b) {
  require(a <= most_width / b, keys, ": want a product of at most ", most_width, ", got ", a, " x ", b);
}

void check_multiple(const char* key, std::int64_t value, const char* of, std::int64_t divisor) {
  require(value % divisor == 0, key, ": want a multiple of ", of, " (", divisor, "), got ", value);
}

void check_range(const char* key, double value, double low, double high) {
  require(value >= low && value <= high, key, ": want a number in [", low, ", ", high, "], got ", value);
}

constexpr double largest = std::numeric_limits<double>::max();

void validate_mamba(const NemotronHConfig& c) {
  check_size("mamba_num_heads", c.mamba_num_heads);
  check_size("mamba_head_dim", c.mamba_head_dim);
  check_size("n_groups", c.n_groups);
  check_size("ssm_state_size", c.ssm_state_size);
  check_size("conv_kernel", c.conv_kernel);
  check_size("chunk_size", c.chunk_size);
  check_width("mamba_num_heads x mamba_head_dim", c.mamba_num_heads, c.mamba_head_dim);
  check_width("n_groups x ssm_state_size", c.n_groups, c.ssm_state_size);
  check_multiple("mamba_num_heads", c.mamba_num_heads, "n_groups", c.n_groups);
  check_range("time_step_min", c.time_step_min, std::numeric_limits<double>::min(), largest);
  check_range("time_step_max", c.time_step_max, c.time_step_min, largest);
  check_range("time_step_floor", c.time_step_floor, 0, largest);
  check_range("time_step_limit[0]", c.time_step_limit_low, 0, largest);
  check_range("time_step_limit[1]", c.time_step_limit_high, c.time_step_limit_low,
              std::numeric_limits<double>::infinity());
}

void validate_attention(const NemotronHConfig& c) {
  check_size("num_attention_heads", c.num_attention_heads);
  check_size("num_key_value_heads", c.num_key_value_heads);
  check_size("head_dim", c.head_dim);
  check_width("num_attention_heads x head_dim", c.num_attention_heads, c.head_dim);
  check_multiple("num_attention_heads", c.num_attention_heads, "num_key_value_heads", c.num_key_value_heads);
}

void validate_moe(const NemotronHConfig& c) {
  check_size("n_routed_experts", c.n_routed_experts);
  check_size("num_experts_per_tok", c.num_experts_per_tok);
  check_size("moe_intermediate_size", c.moe_intermediate_size);
  check_size("moe_shared_expert_intermediate_size", c.moe_shared_expert_intermediate_size);
  check_size("moe_latent_size", c.moe_latent_size, 0);
  check_width("n_routed_experts x moe_intermediate_size", c.n_routed_experts, c.moe_intermediate_size);
  check_size("n_group", c.n_group);
  check_size("topk_group", c.topk_group);
  check_multiple("n_routed_experts", c.n_routed_experts, "n_group", c.n_group);
  require(c.topk_group <= c.n_group, "topk_group: want at most n_group (", c.n_group, "), got ",
          c.topk_group);
  const std::int64_t group = c.n_routed_experts / c.n_group;
  // The score of a group is the sum of its two best experts.
  require(c.n_group == 1 || group >= 2, "n_group: want at least two experts in a group, got ", c.n_group,
          " groups of ", group);
  require(c.num_experts_per_tok <= c.topk_group * group, "num_experts_per_tok: want at most ",
          c.topk_group * group, " (topk_group ", c.topk_group, " x ", group, " experts in a group), got ",
          c.num_experts_per_tok);
  check_range("routed_scaling_factor", c.routed_scaling_factor, -largest, largest);
}

void check_parameters(const NemotronHConfig& c) {
  std::int64_t parameters = 0;
  for (const auto& specs : {tensor_specs(c), mtp_tensor_specs(c)})
    for (const TensorSpec& spec : specs) {
      parameters += spec.shape.numel();
      require(parameters <= most_parameters, "the sizes: want at most ", most_parameters,
              " parameters, got more; tensor '", spec.name, "' alone has the shape ", spec.shape, ", in ",
              c.num_layers(), " blocks");
    }
}

void check_token(const char* key, std::int64_t id, std::int64_t vocab_size) {
  require(id >= 0 && id < vocab_size, key, ": want an id below vocab_size (", vocab_size, "), got ", id);
}
}  // namespace

void NemotronHConfig::validate() const {
  check_size("vocab_size", vocab_size);
  check_size("hidden_size", hidden_size);
  require(!blocks.empty(), "the pattern of layers: want at least one block, got none");
  require(num_layers() <= most_layers, "the pattern of layers: want at most ", most_layers, " blocks, got ",
          num_layers());
  check_range("layer_norm_epsilon", layer_norm_epsilon, std::numeric_limits<double>::min(), largest);
  check_range("initializer_range", initializer_range, 0, largest);
  require(!tie_word_embeddings, "tie_word_embeddings: want false (NemotronH keeps embeddings and lm_head ",
          "apart), got true");
  require(num_nextn_predict_layers >= 0 && num_nextn_predict_layers <= 1024,
          "num_nextn_predict_layers: want 0 to 1024, got ", num_nextn_predict_layers);
  require(num_nextn_predict_layers == 0 || !mtp_blocks.empty(),
          "the pattern of multi-token prediction: want at least one block, got none");
  const auto mtp_layers = static_cast<std::int64_t>(mtp_blocks.size()) * num_nextn_predict_layers;
  require(mtp_layers <= most_layers, "multi-token prediction: want at most ", most_layers, " blocks, got ",
          num_nextn_predict_layers, " x ", mtp_blocks.size());
  if (has(BlockKind::mamba)) validate_mamba(*this);
  if (has(BlockKind::attention)) validate_attention(*this);
  if (has(BlockKind::mlp)) check_size("intermediate_size", intermediate_size);
  if (has(BlockKind::moe)) validate_moe(*this);
  if (pad_token_id) check_token("pad_token_id", *pad_token_id, vocab_size);
  if (bos_token_id) check_token("bos_token_id", *bos_token_id, vocab_size);
  for (std::int64_t id : eos_token_id) check_token("eos_token_id", id, vocab_size);
  check_parameters(*this);
}

namespace {
class SpecList {
 public:
  explicit SpecList(const NemotronHConfig& config) : c_(config) {}
  std::vector<TensorSpec> take() { return std::move(specs_); }

  void add(std::string name, const Shape& shape) {
    const bool keep = keeps_f32(name);
    const bool buffer = name.ends_with(".e_score_correction_bias");
    specs_.push_back({std::move(name), shape, keep, buffer, false});
  }

  void add_block(const std::string& block, BlockKind kind) {
    add(block + ".norm.weight", {c_.hidden_size});
    const std::string mixer = block + ".mixer";
    switch (kind) {
      case BlockKind::mamba:
        return add_mamba(mixer);
      case BlockKind::attention:
        return add_attention(mixer);
      case BlockKind::mlp:
        return add_mlp(mixer, c_.intermediate_size);
      case BlockKind::moe:
        return add_moe(mixer);
    }
  }

 private:
  void add_linear(const std::string& name, std::int64_t out, std::int64_t in, bool bias) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
  }

  void add_mamba(const std::string& mixer) {
    add_linear(mixer + ".in_proj", c_.in_proj_width(), c_.hidden_size, c_.use_bias);
    add(mixer + ".conv1d.weight", {c_.conv_dim(), 1, c_.conv_kernel});
    if (c_.use_conv_bias) add(mixer + ".conv1d.bias", {c_.conv_dim()});
    for (const char* name : {".dt_bias", ".A_log", ".D"}) add(mixer + name, {c_.mamba_num_heads});
    add(mixer + ".norm.weight", {c_.mamba_inner()});
    add_linear(mixer + ".out_proj", c_.hidden_size, c_.mamba_inner(), c_.use_bias);
  }

  void add_attention(const std::string& mixer) {
    add_linear(mixer + ".q_proj", c_.q_width(), c_.hidden_size, false);
    add_linear(mixer + ".k_proj", c_.kv_width(), c_.hidden_size, false);
    add_linear(mixer + ".v_proj", c_.kv_width(), c_.hidden_size, false);
    add_linear(mixer + ".o_proj", c_.hidden_size, c_.q_width(), false);
  }

  void add_mlp(const std::string& mixer, std::int64_t width) {
    add_linear(mixer + ".up_proj", width, c_.hidden_size, c_.mlp_bias);
    add_linear(mixer + ".down_proj", c_.hidden_size, width, c_.mlp_bias);
  }

  void add_moe(const std::string& mixer) {
    const std::int64_t experts = c_.n_routed_experts, inner = c_.moe_intermediate_size,
                       outer = c_.expert_width();
    add(mixer + ".gate.weight", {experts, c_.hidden_size});
    add(mixer + ".gate.e_score_correction_bias", {experts});
    if (c_.moe_latent_size > 0) {
      add_linear(mixer + ".fc1_latent_proj", outer, c_.hidden_size, c_.mlp_bias);
      add_linear(mixer + ".fc2_latent_proj", c_.hidden_size, outer, c_.mlp_bias);
    }
    specs_.push_back({mixer + ".experts.up_proj", {experts, inner, outer}, false, false, true});
    specs_.push_back({mixer + ".experts.down_proj", {experts, outer, inner}, false, false, true});
    add_mlp(mixer + ".shared_experts", c_.moe_shared_expert_intermediate_size);
  }

  const NemotronHConfig& c_;
  std::vector<TensorSpec> specs_;
};
}  // namespace

std::vector<TensorSpec> tensor_specs(const NemotronHConfig& config) {
  SpecList list(config);
  list.add("backbone.embeddings.weight", {config.vocab_size, config.hidden_size});
  for (std::size_t i = 0; i < config.blocks.size(); ++i)
    list.add_block(cat("backbone.layers.", i), config.blocks[i]);
  list.add("backbone.norm_f.weight", {config.hidden_size});
  list.add("lm_head.weight", {config.vocab_size, config.hidden_size});
  return list.take();
}

std::vector<TensorSpec> mtp_tensor_specs(const NemotronHConfig& config) {
  SpecList list(config);
  const std::int64_t h = config.hidden_size;
  const std::size_t blocks = config.mtp_blocks.size();
  for (std::size_t depth = 0; depth < static_cast<std::size_t>(config.num_nextn_predict_layers); ++depth)
    for (std::size_t i = 0; i < blocks; ++i) {
      const std::string block = cat("mtp.layers.", depth * blocks + i);
      if (i == 0) {
        list.add(block + ".enorm.weight", {h});
        list.add(block + ".hnorm.weight", {h});
        list.add(block + ".eh_proj.weight", {h, 2 * h});
      }
      list.add_block(block, config.mtp_blocks[i]);
      if (i + 1 == blocks) list.add(block + ".final_layernorm.weight", {h});
    }
  return list.take();
}

bool keeps_f32(std::string_view name) {
  constexpr std::array<std::string_view, 4> endings{".A_log", ".D", ".dt_bias", ".e_score_correction_bias"};
  return std::ranges::any_of(endings, [&](std::string_view ending) { return name.ends_with(ending); });
}

TensorCount count_tensors(std::span<const TensorSpec> specs) {
  TensorCount count;
  for (const TensorSpec& spec : specs) {
    count.tensors += spec.experts ? spec.shape[0] : 1;
    const std::int64_t before = count.elements, more = spec.shape.numel();
    require(!__builtin_add_overflow(before, more, &count.elements), "tensor '", spec.name, "' of shape ",
            spec.shape, " after ", before, " other parameters: their number does not fit in 64 bits");
    if (spec.buffer) count.buffers += more;
  }
  return count;
}

}  // namespace nemocube
