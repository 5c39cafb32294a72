#include <set>
#include <system_error>

#include "data/files/staging_directory.h"
#include "data/hf/hf_config.h"
#include "data/hf/hf_weights.h"
#include "data/json/atomic_file.h"
#include "data/safetensors/writer.h"
#include "parallel/comm/together.h"

namespace nemocube {

WeightFiles default_weight_files(const ModelSetup& setup) {
  const ModelConfig& config = setup.config;
  WeightFiles files;
  const DType dtype = config.dtype.value_or(DType::f32);
  for (const TensorSpec& spec : tensor_specs(setup)) {
    const std::string stored(stored_name(spec.keep_f32 && dtype == DType::bf16 ? DType::f32 : dtype));
    WeightForm form{spec.experts, {}};
    if (spec.experts)
      for (std::int64_t e = 0; e < spec.shape[0]; ++e)
        for (std::string& name : expert_tensor_names(spec.name, std::to_string(e)))
          form.parts.push_back({std::move(name), stored, single_file_name});
    else
      form.parts.push_back({spec.name, stored, single_file_name});
    files.tensors.emplace(spec.name, std::move(form));
  }
  ModelConfig written = config;
  written.dtype = dtype;
  if (setup.choices.mtp.depths == 0) written.num_nextn_predict_layers = 0;
  files.other_files["config.json"] = make_hf_config(written).text;
  return files;
}

namespace {
const WeightForm& form_of(const NamedTensor& tensor, const WeightFiles& files) {
  const auto found = files.tensors.find(tensor.name);
  expect(found != files.tensors.end(), "tensor '", tensor.name, "' has no place in the weight files");
  const WeightForm& form = found->second;
  const Shape& shape = tensor.global_shape();
  expect(!form.per_expert || (shape.ndim() >= 1 &&
                              (std::ssize(form.parts) == shape[0] || std::ssize(form.parts) == 2 * shape[0])),
         "tensor '", tensor.name, "' of shape ", shape, " for ", form.parts.size(), " tensors of experts");
  return form;
}

/// Part i of a tensor of this shape.
TensorPart part_of(const Shape& shape, const WeightForm& form, std::size_t i) {
  const auto number = static_cast<std::int64_t>(i);
  if (!form.per_expert) return {};
  if (std::ssize(form.parts) == shape[0]) return {number};
  return {number / 2, static_cast<int>(number % 2)};
}

Shape part_shape(const NamedTensor& tensor, const WeightForm& form) {
  const Shape& shape = tensor.global_shape();
  if (!form.per_expert) return shape;
  std::vector<std::int64_t> dims(shape.dims().begin() + 1, shape.dims().end());
  if (std::ssize(form.parts) > shape[0]) dims[0] /= 2;
  return Shape(dims);
}

/// The elements of NamedTensor::value that this process has to save, in ranges.
std::vector<Range> counted_here(const NamedTensor& tensor) {
  std::vector<Range> counted;
  if (!tensor.counts || tensor.value.is_meta()) return counted;
  std::int64_t at = 0;
  for (const Range& elsewhere : tensor.counted_elsewhere) {
    if (at < elsewhere.begin) counted.push_back({at, elsewhere.begin});
    at = elsewhere.end;
  }
  if (at < tensor.value.numel()) counted.push_back({at, tensor.value.numel()});
  return counted;
}

/// Of the elements `part` of a tensor, those that this process has to save.
std::vector<TensorPiece> pieces_of(const NamedTensor& tensor, Range part, DType stored) {
  std::vector<TensorPiece> pieces;
  const std::vector<Range> counted = counted_here(tensor);
  if (counted.empty()) return pieces;
  const Tensor held = tensor.value.as_contiguous().reshape({-1});
  tensor.shard.value_or(Shard(tensor.value.shape()))
      .for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
        const std::int64_t to_global = global - local;
        for (const Range& range : counted) {
          const std::int64_t begin = std::max({global, part.begin, range.begin + to_global}),
                             end = std::min({global + count, part.end, range.end + to_global});
          if (begin >= end) continue;
          pieces.push_back(
              piece_of(held.narrow(0, begin - to_global, end - begin), stored, begin - part.begin));
        }
      });
  return pieces;
}

DType stored_dtype(const WeightPart& part, bool keep_f32, const SaveOptions& options) {
  if (options.dtype) return *options.dtype == DType::bf16 && keep_f32 ? DType::f32 : *options.dtype;
  return part.dtype == "F16" ? DType::f32 : dtype_of_stored(part.dtype).value();
}

constexpr std::int64_t copied_at_once = 1 << 20;  // bytes or elements

void copy_bytes(const StoredIn& stored, const ByteSink& sink) {
  const std::int64_t bytes = stored.entry->bytes();
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(copied_at_once, bytes)));
  for (std::int64_t at = 0; at < bytes; at += copied_at_once) {
    const auto part = std::span(piece).first(static_cast<std::size_t>(std::min(copied_at_once, bytes - at)));
    stored.file->read_bytes(*stored.entry, at, part);
    sink(part);
  }
}

void copy_converted(const StoredIn& stored, std::int64_t elements, DType dtype, const ByteSink& sink) {
  for (std::int64_t at = 0; at < elements; at += copied_at_once) {
    const Tensor part = Tensor::empty({std::min(copied_at_once, elements - at)}, dtype, Device::cpu);  // file
    stored.read(at, part);
    piece_of(part, dtype).write(sink);
  }
}

void copy_changed(const StoredIn& stored, const std::function<void(const Tensor&)>& change, DType dtype,
                  const ByteSink& sink) {
  const DType wide = stored.entry->dtype == "F64" ? DType::f64 : DType::f32;
  const Tensor values = stored.value().to(wide);
  change(values);
  piece_of(values.reshape({-1}), dtype).write(sink);
}

std::int64_t count_of(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) elements *= size;
  return elements;
}

/// A tensor that is carried, by rank 0 of several.
TensorSource source_of(const StoredIn& stored, const Communicator* group) {
  TensorSource source{stored.entry->name, stored.value_dtype(), stored.shape(), {}};
  if (group && group->rank() > 0) return source;
  const std::int64_t elements = count_of(stored.shape());
  source.pieces.push_back({0, elements, [stored, elements](const ByteSink& sink) {
                             if (stored.quantized) return copy_converted(stored, elements, DType::bf16, sink);
                             copy_bytes(stored, sink);
                           }});
  return source;
}

/// `make` returns the source of part i of a tensor.
template <class Make>
FileShards plan_files(std::span<const NamedTensor> tensors, const WeightFiles& files,
                      const SaveOptions& options, const Communicator* group, Make&& make) {
  FileShards as_source;
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
  for (const StoredIn& stored : files.carried) add(stored.file_name(), source_of(stored, group));
  if (options.most_shard_bytes) return plan_shards(std::move(in_order), *options.most_shard_bytes);
  // The weights of a directory with frozen_weights.json may be one file, and those that it leaves to another
  // several.
  if (as_source.size() > 1)
    if (auto single = as_source.extract(single_file_name)) {
      single.key() = "model-trained.safetensors";
      for (int i = 2; as_source.contains(single.key()); ++i)
        single.key() = cat("model-trained-", i, ".safetensors");
      as_source.insert(std::move(single));
    }
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
    for (std::size_t i = 0; i < form.parts.size(); ++i) {
      const TensorPart part = part_of(tensor.value.shape(), form, i);
      Tensor value = part.expert < 0 ? tensor.value : tensor.value.select(part.expert);
      if (const std::int64_t rows = value.ndim() > 0 ? value.dim(0) / 2 : 0; part.half >= 0)
        value = value.narrow(0, part.half * rows, rows);
      named.push_back({form.parts[i].name, std::move(value)});
    }
  }
  return named;
}

namespace {
template <class Make>
FileSums write_directory(const std::filesystem::path& directory, std::span<const NamedTensor> tensors,
                         const WeightFiles& files, const SaveOptions& options, Communicator* group,
                         Make&& make) {
  check_complete(tensors, files);
  require(!options.dtype || is_float(*options.dtype), "dtype of saved weights: want f32, bf16 or f64, got ",
          options.dtype.value_or(DType::f32));
  std::optional<StagingDirectory> staging;  // on rank 0
  const std::filesystem::path place = text_of_rank_0(group, [&] {
    std::error_code error;
    std::filesystem::path target = std::filesystem::absolute(directory, error).lexically_normal();
    if (!target.has_filename()) target = target.parent_path();
    const bool taken = std::filesystem::exists(target, error) && !std::filesystem::is_empty(target, error);
    require(!taken, directory.string(), ": exists and is not empty; want a new directory to save a model in");
    staging.emplace(target);
    return staging->path().string();
  });
  FileSums sums = write_safetensors_model(place, plan_files(tensors, files, options, group, make), group,
                                          options.on_bytes);
  for (const auto& [name, text] : files.other_files) {
    const std::optional<DType> dtype =
        name == "config.json" ? new_config_dtype(files, options) : std::nullopt;
    sums[name] = write_file_in(place, name, dtype ? with_dtype(text, *dtype) : text, group);
  }
  on_rank_0(group, [&] { staging->publish(); });
  return sums;
}
}  // namespace

FileSums save_hf_weights(const std::filesystem::path& directory, std::span<const NamedTensor> tensors,
                         const WeightFiles& files, const SaveOptions& options, Communicator* group) {
  return write_directory(directory, tensors, files, options, group,
                         [&](const NamedTensor& tensor, const WeightForm& form, std::size_t i) {
                           const WeightPart& part = form.parts[i];
                           const DType dtype = stored_dtype(part, tensor.keep_f32, options);
                           const Shape shape = part_shape(tensor, form);
                           const std::int64_t size = shape.numel(),
                                              first = static_cast<std::int64_t>(i) * size;
                           return TensorSource{part.name,
                                               std::string(stored_name(dtype)),
                                               {shape.dims().begin(), shape.dims().end()},
                                               pieces_of(tensor, {first, first + size}, dtype)};
                         });
}

void copy_hf_model(const std::filesystem::path& from, const std::filesystem::path& to,
                   const SaveOptions& options, const WeightChange& change) {
  std::vector<NamedTensor> tensors;
  const ModelConfig config = read_hf_config(from);
  const HfWeights weights(from);
  const auto add = [&](const TensorSpec& spec) {
    tensors.push_back(
        {.name = spec.name, .value = Tensor::meta(spec.shape, DType::f32), .keep_f32 = spec.keep_f32});
  };
  for (const TensorSpec& spec : tensor_specs(ModelSetup(config))) add(spec);
  for (const TensorSpec& spec : mtp_tensor_specs(ModelSetup(config)))  // others are carried
    if (change.changes && change.changes(spec.name) && weights.has(spec.name)) add(spec);
  weights.check(tensors);
  weights.check_tied_head(tensors);
  WeightFiles files = weights.files(tensors);
  if (change.companions) change.companions(files.other_files);
  write_directory(to, tensors, files, options, nullptr,
                  [&](const NamedTensor& tensor, const WeightForm& form, std::size_t i) {
                    const WeightPart& part = form.parts[i];
                    const StoredIn stored = weights.stored(tensor.name)[i];
                    const DType dtype = stored_dtype(part, tensor.keep_f32, options);
                    const std::int64_t elements = part_shape(tensor, form).numel();
                    std::function<void(const ByteSink&)> convert = [stored, elements,
                                                                    dtype](const ByteSink& sink) {
                      copy_converted(stored, elements, dtype, sink);
                    };
                    if (change.changes && change.changes(tensor.name))
                      convert = [stored, dtype, apply = change.apply, name = tensor.name,
                                 place = part_of(tensor.global_shape(), form, i)](const ByteSink& sink) {
                        copy_changed(
                            stored, [&](const Tensor& values) { apply(name, place, values); }, dtype, sink);
                      };
                    return TensorSource{
                        part.name, std::string(stored_name(dtype)), stored.shape(), {{0, elements, convert}}};
                  });
}

}  // namespace nemocube
