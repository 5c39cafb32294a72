#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/quote.h"
#include "model/blocks/attention/attention_block.h"
#include "model/blocks/block_kinds.h"
#include "model/blocks/moe/moe_block.h"
#include "model/config_checks.h"
#include "model/parameters.h"

namespace nemocube {
std::string to_pattern(std::span<const BlockKind> blocks) {
  std::string text;
  for (BlockKind kind : blocks) text += letter_of(kind);
  return text;
}

namespace {
/// "M (mamba), * (attention)"
std::string known_letters() {
  std::string text;
  for (const BlockKind kind : block_kinds())
    text += cat(text.empty() ? "" : ", ", kind->letter, " (", kind->name, ")");
  return text;
}
}  // namespace

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
    const auto kind = find_block_kind(letter);
    if (!kind)
      fail("unknown letter '", excerpt(pattern.substr(i, 1)), "' at position ", i + 1, " of the pattern \"",
           excerpt(pattern), "\"; want ", known_letters(), ", | or /");
    blocks->push_back(*kind);
  }
  return parsed;
}

std::vector<BlockKind> usual_mtp_blocks() { return {attention_block, moe_block}; }

bool NemotronHConfig::has(BlockKind kind) const {
  return count(kind) > 0 || (num_nextn_predict_layers > 0 && std::ranges::count(mtp_blocks, kind) > 0);
}

std::int64_t NemotronHConfig::count(BlockKind kind) const { return std::ranges::count(blocks, kind); }

std::vector<BlockKind> NemotronHConfig::kinds() const {
  std::vector<BlockKind> in_use;
  std::ranges::copy_if(block_kinds(), std::back_inserter(in_use), [&](BlockKind kind) { return has(kind); });
  return in_use;
}

const BlockConfig& NemotronHConfig::block(std::int64_t i) const {
  const auto own = own_configs.find(i);
  return own == own_configs.end() ? common() : own->second;
}

const BlockConfig& NemotronHConfig::of_tensor(std::string_view name) const {
  const auto block_number = block_of(name);
  return block_number ? block(*block_number) : common();
}

std::vector<BlockVariant> NemotronHConfig::variants() const {
  std::vector<BlockVariant> all;
  for (const BlockKind kind : kinds()) {
    std::vector<BlockVariant> own;
    for (const auto& [number, config] : own_configs)
      if (blocks.at(static_cast<std::size_t>(number)) == kind) own.push_back({kind, &config, number, 1});
    const std::int64_t with_common = count(kind) - std::ssize(own);
    // Blocks of multi-token prediction have the common sizes. A kind that occurs only in those that are stored and not trained
    // is listed with a count of 0.
    const bool predicts = mtp.depths > 0 && std::ranges::count(mtp_blocks, kind) > 0;
    if (with_common > 0 || predicts || own.empty())
      all.push_back({kind, &common(), std::nullopt, with_common});
    std::ranges::copy(own, std::back_inserter(all));
  }
  return all;
}

std::string of_block(std::optional<std::int64_t> own) { return own ? cat(" of block ", *own) : ""; }

void check_block(const BlockVariant& variant, const std::function<void()>& check) {
  if (!variant.own) return check();
  try {
    check();
  } catch (const Error& error) {
    fail("block ", *variant.own, ": ", error.what());
  }
}

bool NemotronHConfig::has_experts() const {
  return std::ranges::any_of(kinds(),
                             [&](BlockKind kind) { return kind->cores(common()).experts.has_value(); });
}

std::vector<std::int64_t> NemotronHConfig::expert_counts() const {
  std::vector<std::int64_t> counts;
  const auto add = [&](BlockKind kind, const BlockConfig& config) {
    if (const auto experts = kind->cores(config).experts) counts.push_back(experts->count);
  };
  for (std::int64_t i = 0; i < num_layers(); ++i) add(blocks[static_cast<std::size_t>(i)], block(i));
  for (std::int64_t depth = 0; depth < mtp.stored_depths(); ++depth)
    for (const BlockKind kind : mtp_blocks) add(kind, common());
  return counts;
}

std::int64_t NemotronHConfig::expert_layers() const { return std::ssize(expert_counts()); }

std::int64_t NemotronHConfig::most_experts() const {
  const std::vector<std::int64_t> counts = expert_counts();
  return counts.empty() ? 0 : std::ranges::max(counts);
}

void NemotronHConfig::train_mtp(const MtpTraining& training) {
  mtp = training;
  if (training.depths > 0) num_nextn_predict_layers = training.stored_depths();
}

namespace {
constexpr std::int64_t most_layers = 1 << 14, most_parameters = std::int64_t{1} << 50;

void check_parameters(const NemotronHConfig& c) {
  std::int64_t parameters = 0;
  std::vector<std::vector<TensorSpec>> all{tensor_specs(c)};
  if (c.mtp.depths == 0) all.push_back(mtp_tensor_specs(c));
  for (const auto& specs : all)
    for (const TensorSpec& spec : specs) {
      parameters += spec.shape.numel();
      require(parameters <= most_parameters, "the sizes: want at most ", most_parameters,
              " parameters, got more; tensor '", spec.name, "' alone has the shape ", spec.shape, ", in ",
              c.num_layers(), " blocks");
    }
}

void check_own_configs(const NemotronHConfig& c) {
  for (const auto& [number, own] : c.own_configs) {
    require(number >= 0 && number < c.num_layers(), "a config of block ", number, ": want a block of 0 to ",
            c.num_layers() - 1);
    const auto check = [&](const char* key, auto value, auto common) {
      require(value == common, "block ", number, ": ", key, ": want ", common,
              " as for the whole model, got ", value);
    };
    check("hidden_size", own.hidden_size, c.hidden_size);
    check("layer_norm_epsilon", own.layer_norm_epsilon, c.layer_norm_epsilon);
  }
}

void check_adapters(const NemotronHConfig& c) {
  const LoraAdapters& lora = c.lora;
  if (lora.modules.empty()) return;
  std::set<std::string_view> adapted;
  const std::vector<TensorSpec> specs = tensor_specs(c);
  for (const TensorSpec& spec : specs)
    if (spec.linear) adapted.insert(module_of_weight(spec.name));
  for (const auto& [module, adapter] : lora.modules) {
    require(adapted.contains(module), "low-rank adapters: the model has no linear layer '", module, "'");
    require(adapter.rank >= 1 && adapter.rank <= largest_adapter_rank, "low-rank adapters: the rank of '",
            module, "': want 1 to ", largest_adapter_rank, ", got ", adapter.rank);
    require(std::isfinite(adapter.alpha) && adapter.alpha > 0, "low-rank adapters: alpha of '", module,
            "': want a number above 0, got ", adapter.alpha);
  }
  require(lora.dropout >= 0 && lora.dropout < 1,
          "low-rank adapters: dropout: want a probability of at least 0 and below 1, got ", lora.dropout);
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
  check_range("layer_norm_epsilon", layer_norm_epsilon, std::numeric_limits<double>::min(), largest_number);
  check_range("initializer_range", initializer_range, 0, largest_number);
  require(!tie_word_embeddings, "tie_word_embeddings: want false (NemotronH keeps embeddings and lm_head ",
          "apart), got true");
  require(num_nextn_predict_layers >= 0 && num_nextn_predict_layers <= 1024,
          "num_nextn_predict_layers: want 0 to 1024, got ", num_nextn_predict_layers);
  require(num_nextn_predict_layers == 0 || !mtp_blocks.empty(),
          "the pattern of multi-token prediction: want at least one block, got none");
  const auto mtp_layers = static_cast<std::int64_t>(mtp_blocks.size()) * num_nextn_predict_layers;
  require(mtp_layers <= most_layers, "multi-token prediction: want at most ", most_layers, " blocks, got ",
          num_nextn_predict_layers, " x ", mtp_blocks.size());
  require(mtp.depths >= 0 && mtp.depths <= 1024, "the depths of multi-token prediction: want 0 to 1024, got ",
          mtp.depths);
  require(mtp.depths == 0 || mtp.stored_depths() == num_nextn_predict_layers,
          "multi-token prediction: ", mtp.depths, " depths", mtp.repeated ? " of one repeated layer" : "",
          " want num_nextn_predict_layers ", mtp.stored_depths(), ", got ", num_nextn_predict_layers);
  check_range("mtp_loss_scaling_factor", mtp.scaling_factor, 0, largest_number);
  check_own_configs(*this);
  for (const BlockVariant& v : variants()) check_block(v, [&] { v.kind->validate(*v.config); });
  if (num_nextn_predict_layers > 0)
    for (const BlockKind kind : mtp_blocks) kind->validate(common());
  if (pad_token_id) check_token("pad_token_id", *pad_token_id, vocab_size);
  if (bos_token_id) check_token("bos_token_id", *bos_token_id, vocab_size);
  for (std::int64_t id : eos_token_id) check_token("eos_token_id", id, vocab_size);
  check_parameters(*this);
  check_adapters(*this);
  require(std::isfinite(noise.alpha) && noise.alpha >= 0,
          "noise on the embeddings: alpha: want a number of at least 0, got ", noise.alpha);
}

namespace {
constexpr std::string_view embedding_words[] = {"rowwise", "rowwise_rep"};
constexpr std::string_view head_words[] = {"colwise", "colwise_rep"};
constexpr CutRule of_embeddings{
    .style = TensorStyle::vocab_parallel, .replicable = true, .also = embedding_words};
constexpr CutRule of_head{.style = TensorStyle::vocab_parallel, .replicable = true, .also = head_words};
constexpr CutRule of_norms{.style = TensorStyle::sequence_parallel};

class SpecList {
 public:
  explicit SpecList(const NemotronHConfig& config) : c_(config) {}
  std::vector<TensorSpec> take() { return std::move(specs_); }

  /// `<module>.weight`
  void add(const std::string& module, const Shape& shape, InitialLaw law, const CutRule& cut,
           bool linear = false) {
    add({.name = module + ".weight",
         .shape = shape,
         .linear = linear,
         .law = law,
         .module = module,
         .cut = &cut});
  }
  void add_norm(const std::string& module) { add(module, {c_.hidden_size}, InitialLaw::one, of_norms); }

  void add_block(const std::string& block, BlockKind kind) {
    add_norm(block + ".norm");
    for (const BlockTensor& row : kind->tensors())
      if (const std::optional<Shape> shape = row.shape(c_.of_tensor(block)))
        add({.name = cat(block, ".mixer.", row.name),
             .shape = *shape,
             .keep_f32 = row.keep_f32,
             .buffer = row.buffer,
             .experts = row.experts,
             .linear = row.adaptable && is_projection(row.law) && shape->ndim() > 1,
             .law = row.law,
             .module = cat(block, ".mixer.", module_of(row)),
             .cut = &row.cut});
  }

 private:
  static bool is_projection(InitialLaw law) {
    return law == InitialLaw::input || law == InitialLaw::output || law == InitialLaw::scan_output;
  }

  /// The tensor and, where it is adapted, the factors of its adapter.
  void add(TensorSpec&& spec) {
    specs_.push_back(std::move(spec));
    const TensorSpec& weight = specs_.back();
    if (!weight.linear) return;
    const auto adapter = c_.lora.modules.find(module_of_weight(weight.name));
    if (adapter == c_.lora.modules.end()) return;
    TensorSpec a = weight, b = weight;
    for (TensorSpec* factor : {&a, &b}) {
      factor->keep_f32 = c_.lora.f32;
      factor->linear = false;
    }
    const int last = weight.shape.ndim() - 1;
    a.name = adapter->first + ".lora_A.weight";
    a.factor = LoraFactor::a;
    a.shape[last - 1] = adapter->second.rank;
    a.law = c_.lora.initialisation == LoraInitialisation::xavier ? InitialLaw::lora_normal
                                                                 : InitialLaw::lora_uniform;
    b.name = adapter->first + ".lora_B.weight";
    b.factor = LoraFactor::b;
    b.shape[last] = adapter->second.rank;
    b.law = InitialLaw::zero;
    specs_.push_back(std::move(a));
    specs_.push_back(std::move(b));
  }

  const NemotronHConfig& c_;
  std::vector<TensorSpec> specs_;
};
}  // namespace

std::vector<TensorSpec> tensor_specs(const NemotronHConfig& config) {
  SpecList list(config);
  list.add("backbone.embeddings", {config.vocab_size, config.hidden_size}, InitialLaw::input, of_embeddings);
  for (std::size_t i = 0; i < config.blocks.size(); ++i)
    list.add_block(cat("backbone.layers.", i), config.blocks[i]);
  list.add_norm("backbone.norm_f");
  list.add("lm_head", {config.vocab_size, config.hidden_size}, InitialLaw::input, of_head, true);
  std::vector<TensorSpec> specs = list.take();
  if (config.mtp.depths > 0) std::ranges::move(mtp_tensor_specs(config), std::back_inserter(specs));
  for (TensorSpec& spec : specs) spec.frozen = config.frozen.contains(spec.name);
  return specs;
}

std::vector<TensorSpec> mtp_tensor_specs(const NemotronHConfig& config) {
  SpecList list(config);
  const std::int64_t h = config.hidden_size;
  const std::size_t blocks = config.mtp_blocks.size();
  for (std::size_t depth = 0; depth < static_cast<std::size_t>(config.num_nextn_predict_layers); ++depth)
    for (std::size_t i = 0; i < blocks; ++i) {
      const std::string block = cat("mtp.layers.", depth * blocks + i);
      if (i == 0) {
        list.add_norm(block + ".enorm");
        list.add_norm(block + ".hnorm");
        list.add(block + ".eh_proj", {h, 2 * h}, InitialLaw::input, of_norms, true);
      }
      list.add_block(block, config.mtp_blocks[i]);
      if (i + 1 == blocks) list.add_norm(block + ".final_layernorm");
    }
  return list.take();
}

NemotronHConfig with_stored_mtp(NemotronHConfig config) {
  if (config.num_nextn_predict_layers > 0) config.train_mtp({.depths = config.num_nextn_predict_layers});
  return config;
}

bool keeps_f32(std::string_view name) {
  const BlockTensor* tensor = find_block_tensor(name);
  return tensor && tensor->keep_f32;
}

}  // namespace nemocube
