#include "data/hf/model_record.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/parallel_for.h"
#include "data/files/crc32c.h"
#include "data/hf/frozen_weights.h"
#include "data/hf/hub_cache.h"
#include "data/json/crc_text.h"
#include "data/safetensors/reader.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t sample_bytes = 4096;  // of a tensor

std::uint32_t sampled_sum_of(const SafetensorsFile& file) {
  const std::vector<StoredTensor>& tensors = file.tensors();
  std::vector<std::uint32_t> crcs(tensors.size());
  parallel_for(std::ssize(tensors), 16, [&](std::int64_t first, std::int64_t end) {
    std::vector<std::byte> sample;
    for (std::int64_t i = first; i < end; ++i) {
      const StoredTensor& tensor = tensors[static_cast<std::size_t>(i)];
      const std::int64_t count = std::min(sample_bytes, tensor.bytes());
      sample.resize(static_cast<std::size_t>(count));
      file.read_bytes(tensor, (tensor.bytes() - count) / 2, sample);
      crcs[static_cast<std::size_t>(i)] = crc32c(sample);
    }
  });
  const std::string header = format_safetensors_header(tensors, file.metadata());
  return crc32c(std::as_bytes(std::span(crcs)), crc32c(std::as_bytes(std::span(header))));
}

/// Name and revision of a snapshot in a cache of the Hub: .../models--nvidia--N/snapshots/5f2c. Names have no
/// "--".
void add_hub_name(ModelRecord& record) {
  constexpr std::string_view prefix = "models--", separator = "--";
  const fs::path folder = record.path.parent_path();
  std::string name = folder.parent_path().filename().string();
  if (folder.filename() != "snapshots" || !name.starts_with(prefix)) return;
  name.erase(0, prefix.size());
  if (const std::size_t at = name.find(separator); at != name.npos) name.replace(at, separator.size(), "/");
  record.name = name;
  record.revision = record.path.filename().string();
}

ModelRecord::File with_known(const fs::path& path, const std::string& name, const FileSums& known) {
  ModelRecord::File file;
  file.bytes = static_cast<std::int64_t>(fs::file_size(path));
  if (const auto sum = known.find(name); sum != known.end()) {
    file.crc32c = sum->second.crc32c;
    file.bytes = sum->second.bytes;
  }
  return file;
}

std::optional<std::uint32_t> find_crc(const JsonView& json, const std::string& key) {
  const auto found = json.find(key);
  return found ? std::optional(parse_crc(*found)) : std::nullopt;
}

}  // namespace

std::string ModelRecord::label() const {
  return name.empty() ? path.string() : cat(name, " (revision ", revision, ")");
}

bool is_in_hub_cache(const ModelRecord& record) {
  std::error_code none;
  return !record.name.empty() && record.name.find('/') != std::string::npos &&
         fs::equivalent(record.path.parent_path().parent_path().parent_path(), hub_cache(), none);
}

std::uint32_t sampled_sum(const fs::path& file) { return sampled_sum_of(SafetensorsFile(file)); }

ModelRecord record_of_model(const fs::path& directory, const FileSums& known) {
  ModelRecord record;
  std::error_code error;
  record.path = fs::canonical(directory, error);
  require(!error, directory.string(), ": ", error.message());
  add_hub_name(record);
  for (const char* name : {"config.json", index_file_name, FrozenWeights::file_name})
    if (fs::exists(directory / name, error)) {
      const FileSum sum = sum_of_file(directory / name);
      record.files[name] = {sum.bytes, sum.crc32c, std::nullopt};
    }
  const SafetensorsTensors tensors = open_safetensors_model(directory);
  for (const auto& [tensor, stored] : tensors) {
    const std::string name = stored.file_name();
    if (record.files.contains(name)) continue;
    ModelRecord::File& file = record.files[name] = with_known(directory / name, name, known);
    file.sampled = sampled_sum_of(*stored.file);
  }
  return record;
}

Json to_json(const ModelRecord& record) {
  Json files = Json::object();
  for (const auto& [name, file] : record.files) {
    Json& entry = files[name] = {{"bytes", file.bytes}};
    if (file.crc32c) entry["crc32c"] = crc_text(*file.crc32c);
    if (file.sampled) entry["sampled_crc32c"] = crc_text(*file.sampled);
  }
  Json json{{"path", record.path.string()}};
  if (!record.name.empty()) {
    json["name"] = record.name;
    json["revision"] = record.revision;
  }
  json["files"] = std::move(files);
  return json;
}

ModelRecord model_record_from(const JsonView& json) {
  ModelRecord record;
  record.path = json.at("path").string();
  if (const auto name = json.find("name")) record.name = name->string();
  if (const auto revision = json.find("revision")) record.revision = revision->string();
  const JsonView files = json.at("files");
  if (!files.value().is_object()) files.refuse("an object");
  for (const auto& item : files.value().items()) {
    const JsonView entry = files.at(item.key());
    record.files[item.key()] = {entry.at("bytes").integer(), find_crc(entry, "crc32c"),
                                find_crc(entry, "sampled_crc32c")};
  }
  return record;
}

std::string first_difference(const ModelRecord& written, const ModelRecord& found) {
  const auto differ = [](const auto& a, const auto& b) { return a && b && *a != *b; };
  for (const auto& [name, file] : written.files) {
    const auto other = found.files.find(name);
    if (other == found.files.end()) return cat("it has no ", name);
    const ModelRecord::File& now = other->second;
    if (file.bytes != now.bytes)
      return cat(name, " has ", now.bytes, " bytes, the other one had ", file.bytes);
    if (differ(file.crc32c, now.crc32c) || differ(file.sampled, now.sampled))
      return cat(name, " has other ", file.sampled ? "weights" : "contents", " of the same length");
  }
  for (const auto& [name, file] : found.files)
    if (!written.files.contains(name)) return cat("it also has ", name);
  return "";
}

}  // namespace nemocube
