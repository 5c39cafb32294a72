#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>

#include "core/quote.h"
#include "model/blocks/attention/attention_block.h"
#include "model/blocks/block_kinds.h"
#include "model/blocks/moe/moe_block.h"
#include "model/blocks/per_layer_input/per_layer_input_block.h"
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

bool ModelConfig::has(BlockKind kind) const {
  return count(kind) > 0 || (num_nextn_predict_layers > 0 && std::ranges::count(mtp_blocks, kind) > 0);
}

std::int64_t ModelConfig::count(BlockKind kind) const { return std::ranges::count(blocks, kind); }

std::vector<BlockKind> ModelConfig::kinds() const {
  std::vector<BlockKind> in_use;
  std::ranges::copy_if(block_kinds(), std::back_inserter(in_use), [&](BlockKind kind) { return has(kind); });
  return in_use;
}

const BlockConfig& ModelConfig::block(std::int64_t i) const {
  const auto own = own_configs.find(i);
  return own == own_configs.end() ? common() : own->second;
}

const BlockConfig& ModelConfig::of_tensor(const TensorName& name) const {
  const auto number = name.block_of_model();
  return number ? block(*number) : common();
}

bool ModelConfig::shares_norm(const TensorName& name) const {
  return of_tensor(name).residual == Residual::shared_norm || shares_norm_with_next(name);
}

bool ModelConfig::shares_norm_with_next(const TensorName& name) const {
  const std::optional<std::int64_t> number = name.block_of_model();
  return number && *number + 1 < num_layers() && block(*number + 1).residual == Residual::shared_norm;
}

bool ModelConfig::shares_sum(const TensorName& name) const {
  return shares_norm(name) && !has_norm_after(of_tensor(name).residual);
}

bool ModelConfig::has_layer_scalar(const TensorName& block) const {
  const std::optional<std::int64_t> number = block.block_of_model();
  if (!layer_scalars || !number) return false;
  return *number + 1 == num_layers() || names.layer(*number + 1) != names.layer(*number);
}

std::vector<SideRows> ModelConfig::side_rows(std::int64_t i) const {
  return blocks.at(static_cast<std::size_t>(i))->side_rows(block(i), i);
}

std::map<std::int64_t, std::vector<SideRows>> side_rows_by_maker(const ModelConfig& config) {
  std::map<std::int64_t, std::vector<SideRows>> made;
  for (std::int64_t i = 0; i < config.num_layers(); ++i)
    for (SideRows& rows : config.side_rows(i))
      if (auto& of_maker = made[rows.from]; std::ranges::find(of_maker, rows) == of_maker.end())
        of_maker.push_back(std::move(rows));
  return made;
}

std::vector<SideRows> ModelConfig::side_rows_across(std::int64_t block) const {
  std::vector<SideRows> across;
  for (std::int64_t i = block; i < num_layers(); ++i)
    for (SideRows& rows : side_rows(i))
      if (rows.from < block && std::ranges::find(across, rows) == across.end())
        across.push_back(std::move(rows));
  std::ranges::sort(across, {}, [](const SideRows& rows) { return std::tie(rows.from, rows.name); });
  return across;
}

std::optional<BlockKind> ModelConfig::kind_of(const TensorName& name) const {
  if (const auto number = name.block_of_model()) return blocks.at(static_cast<std::size_t>(*number));
  if (name.in_depth()) return mtp_blocks.at(static_cast<std::size_t>(name.block) % mtp_blocks.size());
  return std::nullopt;
}

std::vector<BlockVariant> ModelSetup::variants() const& {
  std::vector<BlockVariant> all;
  for (const BlockKind kind : config.kinds()) {
    std::vector<BlockVariant> own;
    for (const auto& [number, sizes] : config.own_configs)
      if (config.blocks.at(static_cast<std::size_t>(number)) == kind)
        own.push_back({kind, &sizes, number, 1});
    const std::int64_t with_common = config.count(kind) - std::ssize(own);
    // Blocks of multi-token prediction have the common sizes. A kind that occurs only in those that are
    // stored and not trained is listed with a count of 0.
    const bool predicts = choices.mtp.depths > 0 && std::ranges::count(config.mtp_blocks, kind) > 0;
    if (with_common > 0 || predicts || own.empty())
      all.push_back({kind, &config.common(), std::nullopt, with_common});
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

bool ModelConfig::has_experts() const {
  return std::ranges::any_of(kinds(),
                             [&](BlockKind kind) { return kind->cores(common()).experts.has_value(); });
}

std::vector<std::int64_t> ModelSetup::expert_counts() const {
  std::vector<std::int64_t> counts;
  const auto add = [&](BlockKind kind, const BlockConfig& sizes) {
    if (const auto experts = kind->cores(sizes).experts) counts.push_back(experts->count);
  };
  for (std::int64_t i = 0; i < config.num_layers(); ++i)
    add(config.blocks[static_cast<std::size_t>(i)], config.block(i));
  for (std::int64_t depth = 0; depth < choices.mtp.stored_depths(); ++depth)
    for (const BlockKind kind : config.mtp_blocks) add(kind, config.common());
  return counts;
}

std::int64_t ModelSetup::expert_layers() const { return std::ssize(expert_counts()); }

std::int64_t ModelSetup::most_experts() const {
  const std::vector<std::int64_t> counts = expert_counts();
  return counts.empty() ? 0 : std::ranges::max(counts);
}

void ModelSetup::train_mtp(const MtpTraining& training) {
  choices.mtp = training;
  if (training.depths > 0) config.num_nextn_predict_layers = training.stored_depths();
}

namespace {
constexpr std::int64_t most_layers = 1 << 14, most_parameters = std::int64_t{1} << 50;

void check_parameters(const ModelSetup& setup) {
  std::int64_t parameters = 0;
  std::vector<std::vector<TensorSpec>> all{tensor_specs(setup)};
  if (setup.choices.mtp.depths == 0) all.push_back(mtp_tensor_specs(setup));
  for (const auto& specs : all)
    for (const TensorSpec& spec : specs) {
      parameters += spec.shape.numel();
      require(parameters <= most_parameters, "the sizes: want at most ", most_parameters,
              " parameters, got more; tensor '", spec.name, "' alone has the shape ", spec.shape, ", in ",
              setup.config.num_layers(), " blocks");
    }
}

void check_own_configs(const ModelConfig& c) {
  require(c.block(0).residual != Residual::shared_norm && c.residual != Residual::shared_norm,
          "residual: the first block, and those with the common sizes, have a norm of their own");
  for (const auto& [number, own] : c.own_configs) {
    require(number >= 0 && number < c.num_layers(), "a config of block ", number, ": want a block of 0 to ",
            c.num_layers() - 1);
    const auto check = [&](const char* key, auto value, auto common) {
      require(value == common, "block ", number, ": ", key, ": want ", common,
              " as for the whole model, got ", value);
    };
    check("hidden_size", own.hidden_size, c.hidden_size);
    check("layer_norm_epsilon", own.layer_norm_epsilon, c.layer_norm_epsilon);
    require(own.norm == c.norm, "block ", number, ": norm: want that of the whole model");
    check("hidden_size_per_layer_input", own.per_layer_input.size, c.per_layer_input.size);
    require(own.residual != Residual::shared_norm || c.block(number - 1).residual != Residual::norm_after,
            "block ", number, " shares the norm of a block that has none before its mixer");
  }
}

/// What blocks read of others is made before, by blocks that make it.
void check_shared_keys(const ModelConfig& c) {
  for (const auto& [number, own] : c.own_configs) {
    if (c.blocks[static_cast<std::size_t>(number)] != attention_block || !own.attention.kv_block) continue;
    const std::int64_t from = *own.attention.kv_block;
    require(from >= 0 && from < number && c.blocks[static_cast<std::size_t>(from)] == attention_block &&
                !c.block(from).attention.kv_block,
            "block ", number, " reads keys and values of block ", from,
            ": want a block of attention before it with keys and values of its own");
    const AttentionConfig &a = own.attention, &b = c.block(from).attention;
    require(a.head_dim == b.head_dim && a.num_key_value_heads == b.num_key_value_heads &&
                a.num_attention_heads == b.num_attention_heads,
            "block ", number, " reads keys and values of block ", from,
            ": want the same sizes of heads in both");
  }
  require(!c.attention.kv_block, "blocks with the common sizes have keys and values of their own");
}

void check_adapters(const ModelSetup& setup) {
  const LoraAdapters& lora = setup.choices.lora;
  if (lora.modules.empty()) return;
  std::set<TensorName> adapted;
  for (const TensorSpec& spec : tensor_specs(setup))
    if (spec.linear) adapted.insert(spec.id.module());
  for (const auto& [name, adapter] : lora.modules) {
    const std::string module = setup.config.text(name);
    require(adapted.contains(name), "low-rank adapters: the model has no linear layer '", module, "'");
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

void ModelConfig::validate() const { ModelSetup(*this).validate(); }

namespace {
void check_diffusion(const ModelSetup& setup) {
  const DiffusionTraining& training = setup.choices.diffusion;
  if (const auto& diffusion = setup.config.diffusion) {
    check_token("mask_token_id", diffusion->mask_token_id, setup.config.vocab_size);
    require(diffusion->block_size >= 1, "block_size: want at least 1, got ", diffusion->block_size);
  }
  if (training.paradigm == Paradigm::autoregressive) return;
  require(setup.config.diffusion.has_value(),
          "denoising: want a model that denoises (such as Nemotron-Labs-Diffusion), got another");
  require(training.paradigm != Paradigm::block_diff || training.block_size >= 1,
          "block diffusion: block_size: want at least 1, got ", training.block_size);
  require(setup.choices.mtp.depths == 0, "denoising: want no multi-token prediction, got ",
          setup.choices.mtp.depths, " depths");
  for (const BlockVariant& v : setup.variants()) {
    if (v.kind != attention_block) continue;
    require(v.config->attention.window == 0, "denoising: want attention without a window, got one of ",
            v.config->attention.window, " keys");
    require(!v.config->attention.alibi, "denoising: want attention without ALiBi");
  }
}
}  // namespace

void ModelSetup::validate() const {
  const ModelConfig& c = config;
  const MtpTraining& mtp = choices.mtp;
  check_size("vocab_size", c.vocab_size);
  check_size("max_position_embeddings", c.max_position_embeddings);
  check_size("hidden_size", c.hidden_size);
  require(!c.blocks.empty(), "the pattern of layers: want at least one block, got none");
  require(c.num_layers() <= most_layers, "the pattern of layers: want at most ", most_layers, " blocks, got ",
          c.num_layers());
  check_range("layer_norm_epsilon", c.layer_norm_epsilon, std::numeric_limits<double>::min(), largest_number);
  check_range("initializer_range", c.initializer_range, 0, largest_number);
  check_range("scale of the embeddings", c.embedding_scale, std::numeric_limits<double>::min(),
              largest_number);
  check_range("scale of the logits", c.logit_scale, -largest_number, largest_number);
  check_range("final_logit_softcapping", c.logit_softcap, 0, largest_number);
  check_range("z_loss_weight", c.z_loss_weight, 0, largest_number);
  require(!c.normalized_head || !c.tie_word_embeddings,
          "tie_word_embeddings: want false, because the rows of the head are divided by their lengths");
  require(c.num_nextn_predict_layers >= 0 && c.num_nextn_predict_layers <= 1024,
          "num_nextn_predict_layers: want 0 to 1024, got ", c.num_nextn_predict_layers);
  require(c.num_nextn_predict_layers == 0 || !c.mtp_blocks.empty(),
          "the pattern of multi-token prediction: want at least one block, got none");
  const auto mtp_layers = static_cast<std::int64_t>(c.mtp_blocks.size()) * c.num_nextn_predict_layers;
  require(mtp_layers <= most_layers, "multi-token prediction: want at most ", most_layers, " blocks, got ",
          c.num_nextn_predict_layers, " x ", c.mtp_blocks.size());
  require(mtp.depths >= 0 && mtp.depths <= 1024, "the depths of multi-token prediction: want 0 to 1024, got ",
          mtp.depths);
  require(mtp.depths == 0 || mtp.stored_depths() == c.num_nextn_predict_layers,
          "multi-token prediction: ", mtp.depths, " depths", mtp.repeated ? " of one repeated layer" : "",
          " want num_nextn_predict_layers ", mtp.stored_depths(), ", got ", c.num_nextn_predict_layers);
  check_range("mtp_loss_scaling_factor", mtp.scaling_factor, 0, largest_number);
  check_own_configs(c);
  check_shared_keys(c);
  for (const BlockVariant& v : variants()) check_block(v, [&] { v.kind->validate(*v.config); });
  if (c.num_nextn_predict_layers > 0)
    for (const BlockKind kind : c.mtp_blocks) kind->validate(c.common());
  if (c.pad_token_id) check_token("pad_token_id", *c.pad_token_id, c.vocab_size);
  if (c.bos_token_id) check_token("bos_token_id", *c.bos_token_id, c.vocab_size);
  for (std::int64_t id : c.eos_token_id) check_token("eos_token_id", id, c.vocab_size);
  check_parameters(*this);
  check_adapters(*this);
  const NoiseTraining& noise = choices.noise;
  require(std::isfinite(noise.alpha) && noise.alpha >= 0,
          "noise on the embeddings: alpha: want a number of at least 0, got ", noise.alpha);
  check_diffusion(*this);
}

namespace {
constexpr std::string_view embedding_words[] = {"rowwise", "rowwise_rep", "embedding_rowwise"};
constexpr std::string_view head_words[] = {"colwise", "colwise_rep"};
constexpr CutRule of_embeddings{
    .style = TensorStyle::vocab_parallel, .replicable = true, .also = embedding_words};
constexpr CutRule of_head{.style = TensorStyle::vocab_parallel, .replicable = true, .also = head_words};
constexpr CutRule of_norms{.style = TensorStyle::sequence_parallel};

class SpecList {
 public:
  explicit SpecList(const ModelSetup& setup) : c_(setup.config), lora_(setup.choices.lora) {}
  std::vector<TensorSpec> take() { return std::move(specs_); }

  /// The weight of a module, or another member.
  void add(const TensorName& module, const Shape& shape, InitialLaw law, const CutRule& cut,
           bool linear = false, std::string_view member = "weight") {
    add({.id = module / member,
         .name = {},
         .shape = shape,
         .linear = linear,
         .law = law,
         .module = module,
         .cut = &cut});
  }
  void add_norm(const TensorName& module) {
    const bool from_zero = c_.norm == NormKind::rmsnorm_one_plus_w;
    add(module, {c_.hidden_size}, from_zero ? InitialLaw::zero : InitialLaw::one, of_norms);
    if (c_.norm == NormKind::layernorm)
      add(module, {c_.hidden_size}, InitialLaw::zero, of_norms, false, "bias");
  }

  /// Of PerLayerInputs (model/front/per_layer_inputs.h).
  void add_per_layer_inputs() {
    const std::int64_t layers = c_.count(per_layer_input_block), size = c_.per_layer_input.size;
    if (layers == 0) return;
    add(per_layer_embeddings_name(), {c_.vocab_size, layers * size}, InitialLaw::input, of_embeddings);
    add(per_layer_model_projection_name(), {layers * size, c_.hidden_size}, InitialLaw::input, of_norms,
        true);
    add(per_layer_projection_norm_name(), {size}, InitialLaw::one, of_norms);
  }

  void add_head() {
    // What divides its rows by their lengths is no linear layer.
    const TensorName& module = c_.head_module();
    if (!c_.tie_word_embeddings)
      add(module, {c_.vocab_size, c_.hidden_size}, InitialLaw::input, of_head, !c_.normalized_head);
    if (c_.head_bias)
      append({.id = head_name() / "bias",
              .name = {},
              .shape = {c_.vocab_size},
              .law = InitialLaw::zero,
              .module = module,
              .cut = c_.tie_word_embeddings ? &of_embeddings : &of_head});
  }

  void add_block(const TensorName& block, BlockKind kind) {
    const Residual residual = c_.of_tensor(block).residual;
    if (has_norm_before(residual)) add_norm(block / "norm");
    const TensorName mixer = mixer_of(block);
    for (const BlockTensor& row : kind->tensors())
      if (const std::optional<Shape> shape = row.shape(c_.of_tensor(block)))
        add({.id = mixer / row.name,
             .name = {},
             .shape = *shape,
             .keep_f32 = keeps_f32(row, c_.of_tensor(block)),
             .buffer = row.buffer,
             .experts = row.experts,
             .linear = row.adaptable && is_projection(row.law) && shape->ndim() > 1,
             .law = row.law,
             .module = mixer / module_of(row),
             .cut = &row.cut});
    if (has_norm_after(residual)) add_norm(block / post_norm);
    if (c_.has_layer_scalar(block))
      append({.id = block / layer_scalar,
              .name = {},
              .shape = {1},
              .buffer = true,
              .law = InitialLaw::one,
              .module = block / layer_scalar,
              .cut = &of_norms});
  }

 private:
  static bool is_projection(InitialLaw law) {
    return law == InitialLaw::input || law == InitialLaw::output || law == InitialLaw::scan_output;
  }

  void append(TensorSpec&& spec) {
    spec.name = c_.text(spec.id);
    specs_.push_back(std::move(spec));
  }

  /// The tensor and, where it is adapted, the factors of its adapter.
  void add(TensorSpec&& spec) {
    append(std::move(spec));
    const TensorSpec& weight = specs_.back();
    if (!weight.linear) return;
    const auto adapter = lora_.modules.find(weight.id.module());
    if (adapter == lora_.modules.end()) return;
    TensorSpec a = weight, b = weight;
    for (TensorSpec* factor : {&a, &b}) {
      factor->keep_f32 = lora_.f32;
      factor->linear = false;
    }
    const int last = weight.shape.ndim() - 1;
    a.id = adapter->first / lora_a_weight;
    a.factor = LoraFactor::a;
    a.shape[last - 1] = adapter->second.rank;
    a.law = lora_.initialisation == LoraInitialisation::xavier ? InitialLaw::lora_normal
                                                               : InitialLaw::lora_uniform;
    b.id = adapter->first / lora_b_weight;
    b.factor = LoraFactor::b;
    b.shape[last] = adapter->second.rank;
    b.law = InitialLaw::zero;
    append(std::move(a));
    append(std::move(b));
  }

  const ModelConfig& c_;
  const LoraAdapters& lora_;
  std::vector<TensorSpec> specs_;
};
}  // namespace

std::vector<TensorSpec> tensor_specs(const ModelSetup& setup) {
  const ModelConfig& config = setup.config;
  SpecList list(setup);
  list.add(embeddings_name(), {config.vocab_size, config.hidden_size}, InitialLaw::input, of_embeddings);
  list.add_per_layer_inputs();
  for (std::int64_t i = 0; i < config.num_layers(); ++i)
    list.add_block(block_name(i), config.blocks[static_cast<std::size_t>(i)]);
  list.add_norm(final_norm_name());
  list.add_head();
  std::vector<TensorSpec> specs = list.take();
  if (setup.choices.mtp.depths > 0) std::ranges::move(mtp_tensor_specs(setup), std::back_inserter(specs));
  for (TensorSpec& spec : specs) spec.frozen = setup.choices.frozen.contains(spec.id);
  return specs;
}

std::vector<TensorSpec> mtp_tensor_specs(const ModelSetup& setup) {
  const ModelConfig& config = setup.config;
  SpecList list(setup);
  const std::int64_t h = config.hidden_size, blocks = std::ssize(config.mtp_blocks);
  for (std::int64_t depth = 0; depth < config.num_nextn_predict_layers; ++depth)
    for (std::int64_t i = 0; i < blocks; ++i) {
      const TensorName block = depth_name(depth * blocks + i);
      if (i == 0) {
        list.add_norm(block / mtp_embedding_norm);
        list.add_norm(block / mtp_hidden_norm);
        list.add(block / mtp_join, {h, 2 * h}, InitialLaw::input, of_norms, true);
      }
      list.add_block(block, config.mtp_blocks[static_cast<std::size_t>(i)]);
      if (i + 1 == blocks) list.add_norm(block / mtp_final_norm);
    }
  return list.take();
}

ModelSetup with_stored_mtp(ModelConfig config) {
  ModelSetup setup(std::move(config));
  if (const std::int64_t depths = setup.config.num_nextn_predict_layers; depths > 0)
    setup.train_mtp({.depths = depths});
  return setup;
}

bool keeps_f32(const ModelConfig& config, const TensorName& name) {
  const BlockTensor* tensor =
      name.in_mixer() ? find_block_tensor(*config.kind_of(name), name.member) : nullptr;
  return tensor && keeps_f32(*tensor, config.of_tensor(name));
}

}  // namespace nemocube
