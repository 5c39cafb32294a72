#include "data/hf/hf_weights.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "core/log.h"
#include "data/hf/frozen_weights.h"
#include "data/hf/language_part.h"
#include "data/hf/name_list.h"
#include "data/hf/quantization_config.h"
#include "data/hf/with_scales.h"
#include "parallel/comm/together.h"

namespace nemocube {
namespace {
bool is_mtp(std::string_view name) { return name.starts_with("mtp."); }

/// The frequencies of a rotary embedding, which older files hold and config.json says.
bool is_rope_buffer(std::string_view name) {
  constexpr std::string_view buffer = "rotary_emb.inv_freq";
  if (!name.ends_with(buffer)) return false;
  name.remove_suffix(buffer.size());
  return name.empty() || name.ends_with('.');
}

/// The number that a part of a name is; nothing for other texts.
std::optional<std::int64_t> parse_expert(std::string_view digits) {
  std::int64_t expert = 0;
  if (digits.empty() || digits.size() > 9 || (digits.size() > 1 && digits[0] == '0')) return std::nullopt;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), expert);
  const bool all = error == std::errc() && stop == digits.data() + digits.size();
  return all && expert >= 0 && digits[0] != '-' ? std::optional(expert) : std::nullopt;
}

constexpr std::string_view gated_stack = "gate_up_proj";
constexpr std::array<std::string_view, 2> halves_of_gated{"gate_proj", "up_proj"};

/// A part of a stack: expert_tensor_names() backwards. Nothing for other names.
std::optional<CanonicalTensor> slice_of_stack(std::string_view name, const NameTable& names) {
  constexpr std::string_view ending = ".weight";
  if (!name.ends_with(ending)) return std::nullopt;
  name.remove_suffix(ending.size());
  const std::size_t last = name.rfind('.');
  if (last == name.npos || last == 0) return std::nullopt;
  const std::size_t before = name.rfind('.', last - 1);
  if (before == name.npos) return std::nullopt;
  const auto expert = parse_expert(name.substr(before + 1, last - before - 1));
  if (!expert) return std::nullopt;
  const std::string_view module = name.substr(0, before), member = name.substr(last + 1);
  if (std::string stack = cat(module, '.', member); names.is_stack(stack))
    return CanonicalTensor{std::move(stack), {*expert}};
  const auto half = std::ranges::find(halves_of_gated, member);
  if (std::string stack = cat(module, '.', gated_stack);
      half != halves_of_gated.end() && names.is_stack(stack))
    return CanonicalTensor{std::move(stack), {*expert, static_cast<int>(half - halves_of_gated.begin())}};
  return std::nullopt;
}
}  // namespace

CanonicalTensor canonical_tensor(std::string_view name_in_file, const NameTable& names) {
  const std::string name = names.canonical(without_language_prefix(name_in_file));
  return slice_of_stack(name, names).value_or(CanonicalTensor{name});
}

std::vector<std::string> expert_tensor_names(std::string_view stacked_name, std::string_view expert) {
  const std::size_t dot = stacked_name.rfind('.');
  const std::string_view module = stacked_name.substr(0, dot + 1), member = stacked_name.substr(dot + 1);
  const auto name = [&](std::string_view layer) { return cat(module, expert, '.', layer, ".weight"); };
  if (member != gated_stack) return {name(member)};
  return {name(halves_of_gated[0]), name(halves_of_gated[1])};
}

HfWeights::HfWeights(const std::filesystem::path& directory) : directory_(directory) {
  SafetensorsTensors tensors = open_safetensors_model(directory);
  const DirectoryModel model = directory_model(directory);
  names_ = model.names;
  const ModelNames names(*names_);
  head_ = names.text(head_name() / "weight");
  embeddings_ = names.text(embeddings_name() / "weight");
  const auto is_of_language = language_tensors(model, tensors);
  tensors = with_scales(std::move(tensors), is_of_language);
  check_declared_quantization(directory, tensors);
  for (const auto& [name, stored] : tensors) {
    if (!is_of_language(name)) {
      other_parts_.push_back(stored);
      continue;
    }
    if (is_rope_buffer(name)) continue;
    const CanonicalTensor place = canonical_tensor(name, *model.names);
    Entry& entry = entries_[place.name];
    const auto same = entry.parts.find(place.part);
    const bool mixed = !entry.parts.empty() && (entry.per_expert() != (place.part.expert >= 0) ||
                                                entry.halves() != (place.part.half >= 0));
    if (mixed || same != entry.parts.end()) {
      const auto& other = mixed ? entry.parts.begin()->second : same->second;
      fail(directory.string(), ": tensors '", other.entry->name, "' and '", name,
           "' are the same weights under two names");
    }
    entry.parts.emplace(place.part, stored);
  }
  add_frozen();
}

void HfWeights::add_frozen() {
  const std::optional<FrozenWeights> frozen = read_frozen_weights(directory_);
  if (!frozen) return;
  const std::string file = (directory_ / FrozenWeights::file_name).string();
  require(std::filesystem::exists(frozen->base), file, ": base_model_name_or_path: ", frozen->base.string(),
          " does not exist; the weights that were not trained are there");
  require(!read_frozen_weights(frozen->base), file, ": base_model_name_or_path: ", frozen->base.string(),
          " leaves weights to another directory as well; want a whole model");
  const HfWeights base(frozen->base);
  for (const std::string& name : frozen->tensors) {
    require(base.has(name), file, ": ", frozen->base.string(), " has no tensor for '", name, "'");
    require(entries_.emplace(name, base.at(name)).second, file, ": the directory has a tensor for '", name,
            "' itself");
  }
}

const HfWeights::Entry& HfWeights::at(std::string_view name) const {
  const auto found = entries_.find(name);
  require(found != entries_.end(), directory_.string(), ": no tensor for '", name, "'");
  return found->second;
}

std::vector<StoredIn> HfWeights::stored(std::string_view name) const {
  std::vector<StoredIn> places;
  for (const auto& [part, stored] : at(name).parts) places.push_back(stored);
  return places;
}

std::int64_t HfWeights::bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [name, entry] : entries_)
    for (const auto& part : entry.parts) bytes += part.second.entry->bytes();
  return bytes;
}

std::optional<std::string> HfWeights::quantized() const {
  for (const auto& [name, entry] : entries_)
    for (const auto& part : entry.parts)
      if (part.second.quantized)
        return cat(part.second.file->path().string(), ": '", part.second.entry->name, "'");
  return std::nullopt;
}

Shape HfWeights::Entry::part_shape(const Shape& whole) const {
  if (!per_expert() || whole.ndim() < 1) return whole;
  std::vector<std::int64_t> dims(whole.dims().begin() + 1, whole.dims().end());
  if (halves() && !dims.empty()) dims[0] /= 2;
  return Shape(dims);
}

std::vector<StoredPart> HfWeights::parts(std::string_view name, const Shape& shape) const {
  const Entry& entry = at(name);
  const Shape part_shape = entry.part_shape(shape);
  if (entry.per_expert()) {
    const std::int64_t count = static_cast<std::int64_t>(entry.parts.size()),
                       of_each = entry.halves() ? 2 : 1, last = entry.parts.rbegin()->first.expert;
    require(shape.ndim() >= of_each && shape[0] * of_each == count && last == shape[0] - 1,
            directory_.string(), ": want all experts of '", name, "' for shape ", shape, ", got ", count,
            of_each == 2 ? " tensors" : "", " up to number ", last);
  }
  std::vector<StoredPart> parts;
  for (const auto& [part, stored] : entry.parts) {
    require(std::ranges::equal(stored.shape(), part_shape.dims()), name, ": want shape ", part_shape,
            ", got ", describe(*stored.entry));
    Shard shard(shape);
    if (part.expert >= 0) shard = shard.cut(0, Range{part.expert, part.expert + 1});
    if (part.half >= 0)
      shard = shard.cut(1, Range{part.half * part_shape[0], (part.half + 1) * part_shape[0]});
    parts.push_back({stored, std::move(shard)});
  }
  return parts;
}

BytesRead HfWeights::read(std::span<const NamedTensor> into, Communicator* node,
                          const OnBytes& on_bytes) const {
  std::vector<WantedPart> wanted;
  for (const NamedTensor& t : into)
    wanted.push_back({t.name, t.shard.value_or(Shard(t.global_shape())), t.value});
  return read_parts(
      wanted, [&](const WantedPart& part) { return parts(part.name, part.shard.global_shape()); }, node,
      on_bytes);
}

namespace {
bool has_values(const StoredIn& stored) {
  const std::string dtype = stored.value_dtype();
  return dtype == "F32" || dtype == "BF16" || dtype == "F16" || dtype == "F64";
}

std::string fault(const StoredIn& stored, const Shape& want) {
  const std::string& name = stored.entry->name;
  const bool codes = stored.entry->dtype == "F8_E4M3" && !stored.quantized;
  return cat(name, " is ", describe(*stored.entry), ", want floating ", want,
             codes ? cat(" or ", name, "_scale beside it") : "");
}
}  // namespace

void HfWeights::check(std::span<const NamedTensor> wanted) const {
  NameList missing("missing"), unexpected("unexpected"), wrong("with another shape or dtype");
  std::set<std::string_view> names;
  for (const NamedTensor& w : wanted) {
    names.insert(w.name);
    const auto found = entries_.find(w.name);
    if (found == entries_.end()) {
      missing.add(w.name);
      continue;
    }
    const Entry& entry = found->second;
    const Shape& whole = w.global_shape();
    const Shape want = entry.part_shape(whole);
    const std::int64_t experts = entry.per_expert() && whole.ndim() > 0 ? whole[0] : 0;
    for (const auto& [part, stored] : entry.parts) {
      if (part.expert >= experts && part.expert >= 0)
        unexpected.add(stored.entry->name);
      else if (!std::ranges::equal(stored.shape(), want.dims()) || !has_values(stored))
        wrong.add(fault(stored, want));
    }
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::vector<std::string> names_of_expert = expert_tensor_names(w.name, std::to_string(e));
      for (std::size_t i = 0; i < names_of_expert.size(); ++i)
        if (!entry.parts.contains({e, entry.halves() ? static_cast<int>(i) : -1}))
          missing.add(names_of_expert[i]);
    }
  }
  const auto unread = [&](const std::string& name) {
    const std::optional<std::string> without = names_->unread_without(name);
    return without && !names.contains(*without);
  };
  for (const auto& [name, entry] : entries_)
    if (!names.contains(name) && !is_mtp(name) && name != head_ && !unread(name))  // head_: check_tied_head()
      for (const auto& part : entry.parts) unexpected.add(part.second.entry->name);
  const std::string trouble = missing.text() + unexpected.text() + wrong.text();
  require(trouble.empty(), directory_.string(), ": the tensors are not those of the model:", trouble);
}

namespace {
bool same_values(const StoredIn& a, const StoredIn& b) {
  constexpr std::int64_t most = 1 << 20;
  std::int64_t elements = 1;
  for (const std::int64_t size : a.shape()) elements *= size;
  for (std::int64_t at = 0; at < elements; at += most) {
    const Shape part{std::min(most, elements - at)};
    const Tensor of_a = Tensor::empty(part, DType::f64, Device::cpu);  // of files
    const Tensor of_b = Tensor::empty(part, DType::f64, Device::cpu);  // of files
    a.read(at, of_a);
    b.read(at, of_b);
    if (!std::equal(of_a.data<double>(), of_a.data<double>() + of_a.numel(), of_b.data<double>()))
      return false;
  }
  return true;
}
}  // namespace

void HfWeights::check_tied_head(std::span<const NamedTensor> loaded) const {
  if (!has(head_) || std::ranges::find(loaded, head_, &NamedTensor::name) != loaded.end()) return;
  const std::vector<StoredIn> head = stored(head_), embeddings = stored(embeddings_);
  require(head.size() == 1 && head[0].shape() == embeddings.at(0).shape() && has_values(head[0]) &&
              same_values(head[0], embeddings[0]),
          directory_.string(), ": '", head[0].entry->name, "' differs from '", embeddings[0].entry->name,
          "', but config.json says that both are one (tie_word_embeddings)");
  log_warning(directory_.string(), ": '", head[0].entry->name, "' is the embeddings a second time (",
              "tie_word_embeddings): it is not read, and not written again");
}

WeightFiles HfWeights::files(std::span<const NamedTensor> loaded) const {
  WeightFiles files;
  for (const NamedTensor& tensor : loaded) {
    const Entry& entry = at(tensor.name);
    WeightForm form{entry.per_expert(), {}};
    for (const auto& [part, stored] : entry.parts)
      form.parts.push_back({without_wrappers(stored.entry->name), stored.value_dtype(), stored.file_name()});
    files.tensors.emplace(tensor.name, std::move(form));
  }
  for (const auto& [name, entry] : entries_)
    if (is_mtp(name) && !files.tensors.contains(name))
      for (const auto& part : entry.parts) files.carried.push_back(part.second);
  files.carried.insert(files.carried.end(), other_parts_.begin(), other_parts_.end());
  files.other_files = read_companion_files(directory_);
  if (const auto config = files.other_files.find("config.json"); config != files.other_files.end())
    config->second = without_quantization(config->second);
  return files;
}

WeightFiles load_hf_weights(const HfWeights& weights, std::span<const NamedTensor> into, World* world,
                            const OnBytes& on_bytes) {
  weights.check(into);
  std::optional<StorageTime> longer;  // ranks wait for what others read
  if (world) longer.emplace(*world, weights.bytes());
  on_rank_0(world ? &world->communicator() : nullptr, [&] { weights.check_tied_head(into); });
  weights.read(into, world ? world->node_group() : nullptr, on_bytes);
  return weights.files(into);
}

}  // namespace nemocube
