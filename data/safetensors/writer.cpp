#include "data/safetensors/writer.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "data/json/json.h"
#include "data/safetensors/reader.h"

namespace nemocube {

std::int64_t TensorSource::bytes() const {
  std::int64_t bits = stored_bits(dtype);
  expect(bits > 0, "tensor '", name, "' to be written as ", dtype);
  for (std::int64_t dim : shape) bits *= dim;
  return bits / 8;
}

namespace {
void write_rows(const Tensor& value, const ByteSink& sink) {
  if (value.numel() == 0) return;
  const auto* data = static_cast<const std::byte*>(value.raw());
  const std::int64_t row = value.cols() * size_of(value.dtype());
  if (value.contiguous()) return sink({data, static_cast<std::size_t>(value.bytes())});
  for (std::int64_t r = 0; r < value.rows(); ++r)
    sink({data + r * value.row_stride() * size_of(value.dtype()), static_cast<std::size_t>(row)});
}

void write_converted(const Tensor& value, DType stored, const ByteSink& sink) {
  constexpr std::int64_t piece = 1 << 20;  // elements
  const std::int64_t cols = std::max<std::int64_t>(value.cols(), 1);
  const Tensor rows = value.reshape({value.numel() / cols, cols});
  const std::int64_t step = std::max<std::int64_t>(1, piece / cols);
  for (std::int64_t r = 0; r < rows.rows(); r += step) {
    const Tensor part = rows.narrow(0, r, std::min(step, rows.rows() - r));
    write_rows(part.to(stored), sink);
  }
}
}  // namespace

TensorSource source_of(std::string name, const Tensor& value, DType stored) {
  expect(value.defined(), "undefined tensor '", name, "' to be written");
  const auto dims = value.shape().dims();
  return {std::move(name),
          std::string(stored_name(stored)),
          {dims.begin(), dims.end()},
          [value, stored](const ByteSink& sink) {
            if (value.dtype() == stored)
              write_rows(value, sink);
            else
              write_converted(value, stored, sink);
          }};
}

FileSum write_safetensors(const std::filesystem::path& path, std::vector<TensorSource> tensors,
                          const SafetensorsMetadata& metadata) {
  std::ranges::sort(tensors, {},
                    [](const TensorSource& t) { return std::pair(-stored_bits(t.dtype), t.name); });
  std::vector<StoredTensor> entries;
  std::int64_t next = 0;
  for (const TensorSource& t : tensors) {
    entries.push_back({t.name, t.dtype, t.shape, next, next + t.bytes()});
    next = entries.back().end;
  }
  std::vector<std::string_view> names;
  for (const TensorSource& t : tensors) names.push_back(t.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  require(twice == names.end(), path.string(), ": two tensors with the name '",
          twice == names.end() ? "" : *twice, "'");

  AtomicFile file(path);
  const std::string header = format_safetensors_header(entries, metadata);
  file.write(header);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].write([&](std::span<const std::byte> bytes) { file.write(bytes); });
    expect(file.written() == static_cast<std::int64_t>(header.size()) + entries[i].end, path.string(),
           ": tensor '", entries[i].name, "' wrote other than ", entries[i].bytes(), " bytes");
    tensors[i].write = nullptr;  // releases the tensor that the callback holds
  }
  file.commit();
  return file.sum();
}

ShardPlan plan_shards(std::vector<TensorSource> tensors, std::int64_t most_bytes) {
  std::vector<std::vector<TensorSource>> shards(1);
  std::int64_t filled = 0;
  for (TensorSource& t : tensors) {
    const std::int64_t bytes = t.bytes();
    if (most_bytes > 0 && !shards.back().empty() && filled + bytes > most_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    shards.back().push_back(std::move(t));
  }
  ShardPlan plan;
  if (shards.size() == 1) {
    plan[single_file_name] = std::move(shards[0]);
    return plan;
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    plan[name] = std::move(shards[i]);
  }
  return plan;
}

FileSums write_safetensors_model(const std::filesystem::path& directory, ShardPlan plan) {
  std::map<std::string, std::string> places;
  std::int64_t total = 0;
  for (const auto& [file, tensors] : plan)
    for (const TensorSource& t : tensors) {
      const bool added = places.emplace(t.name, file).second;
      require(added, directory.string(), ": two tensors with the name '", t.name, "'");
      total += t.bytes();
    }
  FileSums sums;
  for (auto& [file, tensors] : plan) sums[file] = write_safetensors(directory / file, std::move(tensors));
  if (plan.size() == 1 && plan.begin()->first == single_file_name) return sums;
  Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", Json::object()}};
  Json::object_t& map = index["weight_map"].get_ref<Json::object_t&>();
  for (const auto& [name, file] : places)
    static_cast<Json::object_t::Container&>(map).emplace_back(name, file);
  sums[index_file_name] = write_file_atomically(directory / index_file_name, dump_json(index) + "\n");
  return sums;
}

}  // namespace nemocube
