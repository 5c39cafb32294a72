#include <set>
#include <system_error>

#include "data/files/staging_directory.h"
#include "data/hf/hf_config.h"
#include "data/hf/hf_weights.h"
#include "data/json/atomic_file.h"
#include "data/safetensors/writer.h"

namespace nemocube {

WeightFiles default_weight_files(const NemotronHConfig& config) {
  WeightFiles files;
  const DType dtype = config.dtype.value_or(DType::f32);
  for (const TensorSpec& spec : tensor_specs(config)) {
    const std::string stored(stored_name(spec.keep_f32 && dtype == DType::bf16 ? DType::f32 : dtype));
    WeightForm form{spec.experts, {}};
    if (spec.experts)
      for (std::int64_t e = 0; e < spec.shape[0]; ++e)
        form.parts.push_back({expert_tensor_name(spec.name, e), stored, single_file_name});
    else
      form.parts.push_back({spec.name, stored, single_file_name});
    files.tensors.emplace(spec.name, std::move(form));
  }
  NemotronHConfig written = config;
  written.dtype = dtype;
  written.num_nextn_predict_layers = 0;
  files.other_files["config.json"] = make_hf_config(written).text;
  return files;
}

namespace {
const WeightForm& form_of(const NamedTensor& tensor, const WeightFiles& files) {
  const auto found = files.tensors.find(tensor.name);
  expect(found != files.tensors.end(), "tensor '", tensor.name, "' has no place in the weight files");
  const WeightForm& form = found->second;
  expect(
      !form.per_expert ||
          (tensor.value.ndim() >= 1 && tensor.value.dim(0) == static_cast<std::int64_t>(form.parts.size())),
      "tensor '", tensor.name, "' of shape ", tensor.value.shape(), " for ", form.parts.size(), " experts");
  return form;
}

Tensor part_of(const NamedTensor& tensor, const WeightForm& form, std::size_t part) {
  return form.per_expert ? tensor.value.select(static_cast<std::int64_t>(part)) : tensor.value;
}

DType stored_dtype(const WeightPart& part, const SaveOptions& options) {
  if (options.dtype)
    return *options.dtype == DType::bf16 && keeps_f32(part.name) ? DType::f32 : *options.dtype;
  return part.dtype == "F16" ? DType::f32 : dtype_of_stored(part.dtype).value();
}

TensorSource source_of(const StoredIn& stored) {
  const StoredTensor& entry = *stored.entry;
  return {entry.name, entry.dtype, entry.shape,
          [stored](const ByteSink& sink) { sink(stored.file->bytes(*stored.entry)); }};
}

/// `make` returns the source of part i of a tensor.
template <class Make>
ShardPlan plan_files(std::span<const NamedTensor> tensors, const WeightFiles& files,
                     const SaveOptions& options, Make&& make) {
  ShardPlan as_source;
  std::vector<TensorSource> in_order;
  const auto add = [&](const std::string& file, TensorSource source) {
    if (options.most_shard_bytes)
      in_order.push_back(std::move(source));
    else
      as_source[file].push_back(std::move(source));
  };
  for (const NamedTensor& tensor : tensors) {
    const WeightForm& form = form_of(tensor, files);
    for (std::size_t i = 0; i < form.parts.size(); ++i) add(form.parts[i].file, make(tensor, form, i));
  }
  for (const StoredIn& stored : files.carried) add(stored.file_name(), source_of(stored));
  if (options.most_shard_bytes) return plan_shards(std::move(in_order), *options.most_shard_bytes);
  return as_source;
}

void check_complete(std::span<const NamedTensor> tensors, const WeightFiles& files) {
  std::set<std::string_view> names;
  for (const NamedTensor& tensor : tensors)
    expect(names.insert(tensor.name).second, "tensor '", tensor.name, "' given twice to save");
  for (const auto& [name, form] : files.tensors)
    expect(names.contains(name), "tensor '", name, "' not given to save");
}

/// The dtype that config.json must name after saving; nothing when it stays as it is.
std::optional<DType> new_config_dtype(const WeightFiles& files, const SaveOptions& options) {
  if (options.dtype) return options.dtype;
  for (const auto& [name, form] : files.tensors)
    for (const WeightPart& part : form.parts)
      if (part.dtype == "F16") return DType::f32;
  return std::nullopt;
}
}  // namespace

std::vector<NamedTensor> to_file_names(std::span<const NamedTensor> tensors, const WeightFiles& files) {
  std::vector<NamedTensor> named;
  for (const NamedTensor& tensor : tensors) {
    const WeightForm& form = form_of(tensor, files);
    for (std::size_t i = 0; i < form.parts.size(); ++i)
      named.push_back({form.parts[i].name, part_of(tensor, form, i)});
  }
  return named;
}

namespace {
template <class Make>
FileSums write_directory(const std::filesystem::path& directory, std::span<const NamedTensor> tensors,
                         const WeightFiles& files, const SaveOptions& options, Make&& make) {
  check_complete(tensors, files);
  require(!options.dtype || is_float(*options.dtype), "dtype of saved weights: want f32, bf16 or f64, got ",
          options.dtype.value_or(DType::f32));
  std::error_code error;
  std::filesystem::path target = std::filesystem::absolute(directory, error).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  const bool taken = std::filesystem::exists(target, error) && !std::filesystem::is_empty(target, error);
  require(!taken, directory.string(), ": exists and is not empty; want a new directory to save a model in");
  StagingDirectory staging(target);
  FileSums sums = write_safetensors_model(staging.path(), plan_files(tensors, files, options, make));
  for (const auto& [name, text] : files.other_files) {
    const std::optional<DType> dtype =
        name == "config.json" ? new_config_dtype(files, options) : std::nullopt;
    sums[name] = write_file_atomically(staging.path() / name, dtype ? with_dtype(text, *dtype) : text);
  }
  staging.publish();
  return sums;
}
}  // namespace

FileSums save_hf_weights(const std::filesystem::path& directory, std::span<const NamedTensor> tensors,
                         const WeightFiles& files, const SaveOptions& options) {
  return write_directory(directory, tensors, files, options,
                         [&](const NamedTensor& tensor, const WeightForm& form, std::size_t i) {
                           const WeightPart& part = form.parts[i];
                           return source_of(part.name, part_of(tensor, form, i), stored_dtype(part, options));
                         });
}

void copy_hf_model(const std::filesystem::path& from, const std::filesystem::path& to,
                   const SaveOptions& options) {
  std::vector<NamedTensor> tensors;
  for (const TensorSpec& spec : tensor_specs(read_hf_config(from)))
    tensors.push_back({spec.name, Tensor::meta(spec.shape, DType::f32)});
  const HfWeights weights(from);
  weights.check(tensors);
  write_directory(
      to, tensors, weights.files(tensors), options,
      [&](const NamedTensor& tensor, const WeightForm& form, std::size_t i) {
        const WeightPart& part = form.parts[i];
        const StoredIn stored = weights.stored(tensor.name)[i];
        const DType dtype = stored_dtype(part, options);
        const auto convert = [stored, dtype](const ByteSink& sink) {
          source_of("", stored.value(), dtype).write(sink);
        };
        return TensorSource{part.name, std::string(stored_name(dtype)), stored.entry->shape, convert};
      });
}

}  // namespace nemocube
