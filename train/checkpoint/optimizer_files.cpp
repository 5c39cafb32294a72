#include "train/checkpoint/optimizer_files.h"

#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "core/log.h"
#include "core/rng.h"
#include "data/hf/name_list.h"
#include "data/json/json.h"
#include "data/safetensors/shard_json.h"
#include "data/safetensors/writer.h"
#include "parallel/comm/together.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

constexpr const char *shards_key = "shards", *index_name = "index.json";

bool several(const Communicator* ranks) { return ranks && ranks->size() > 1; }

std::string file_name(const Communicator* ranks, int rank) {
  if (!several(ranks)) return "optimizer.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "optimizer-%05d-of-%05d.safetensors", rank, ranks->size());
  return name;
}

// What this rank has to keep, in the shape in which the file has it.
std::vector<StateTensor> kept_state(const Optimizer& optimizer) {
  std::vector<StateTensor> kept;
  for (StateTensor& t : optimizer.state()) {
    if (t.value.numel() == 0 && !t.shard.whole()) continue;
    if (t.shard.whole()) t.value = t.value.reshape(t.shard.global_shape());
    kept.push_back(std::move(t));
  }
  return kept;
}

// index.json, from the parts in the files of all ranks.
Json index_of(const std::vector<std::string>& parts_of_ranks, const Communicator* ranks) {
  std::map<std::string, Json> tensors;
  for (std::size_t r = 0; r < parts_of_ranks.size(); ++r) {
    if (parts_of_ranks[r].empty()) continue;
    const std::string file = file_name(ranks, static_cast<int>(r));
    const Json parts = parse_json(parts_of_ranks[r], file);
    for (const auto& item : parts.items()) {
      Json& entry = tensors[item.key()];
      entry["dtype"] = item.value()["dtype"];
      entry["parts"][file] = item.value()["part"];
    }
  }
  return {{"tensors", Json(tensors)}};
}

}  // namespace

std::vector<StateTensor> written_state(const Optimizer& optimizer, Communicator* ranks) {
  std::vector<StateTensor> kept = kept_state(optimizer);
  if (!several(ranks)) return kept;
  std::vector<std::uint64_t> own;
  for (const StateTensor& t : kept) own.push_back(hash_name(t.name + dump_json(to_json(t.shard), -1)));
  const std::string_view bytes(reinterpret_cast<const char*>(own.data()), own.size() * sizeof own[0]);
  std::unordered_map<std::uint64_t, int> lowest;  // rank that keeps this part
  int rank = 0;
  for (const std::string& text : gather_texts(ranks, bytes)) {
    for (std::size_t at = 0; at < text.size(); at += sizeof own[0]) {
      std::uint64_t part = 0;
      std::memcpy(&part, text.data() + at, sizeof part);
      lowest.emplace(part, rank);
    }
    ++rank;
  }
  std::vector<StateTensor> written;
  for (std::size_t i = 0; i < kept.size(); ++i)
    if (lowest.at(own[i]) == ranks->rank()) written.push_back(std::move(kept[i]));
  return written;
}

FileSums save_optimizer(const fs::path& directory, std::span<const StateTensor> state, Communicator* ranks,
                        const OnBytes& on_bytes) {
  const int rank = ranks ? ranks->rank() : 0;
  const bool writes = !state.empty() || !several(ranks);
  FileSum own;
  Json parts = Json::object();  // for the index
  together(ranks, [&] {
    if (!writes) return;
    std::vector<TensorSource> tensors;
    Json shards = Json::object();
    for (const StateTensor& t : state) {
      tensors.push_back(source_of(t.name, t.value, t.value.dtype()));
      shards[t.name] = to_json(t.shard);
      parts[t.name] = {{"dtype", tensors.back().dtype}, {"part", shards[t.name]}};
    }
    SafetensorsMetadata metadata = pytorch_metadata;
    if (several(ranks)) metadata[shards_key] = dump_json(shards, -1);
    own = write_safetensors(directory / file_name(ranks, rank), std::move(tensors), metadata, nullptr,
                            on_bytes);
  });
  const std::string_view bytes(reinterpret_cast<const char*>(&own), sizeof own);
  const auto of_ranks = gather_texts(ranks, writes ? bytes : std::string_view());
  const auto parts_of_ranks = gather_texts(ranks, writes ? dump_json(parts, -1) : "");
  FileSums sums;
  for (std::size_t r = 0; r < of_ranks.size(); ++r)
    if (!of_ranks[r].empty())
      std::memcpy(&sums[file_name(ranks, static_cast<int>(r))], of_ranks[r].data(), sizeof own);
  sums[index_name] = write_file_atomically(directory / index_name,
                                           dump_json(index_of(parts_of_ranks, ranks), -1) + "\n", ranks);
  return sums;
}

StoredOptimizer::StoredOptimizer(const fs::path& directory) : directory_(directory) {
  if (fs::exists(directory / index_name))
    open_index(directory / index_name);
  else
    open_files();
}

namespace {

std::int64_t elements_of(const StoredTensor& tensor) {
  std::int64_t elements = 1;
  for (const std::int64_t size : tensor.shape) elements *= size;
  return elements;
}

// A file says of which parts it has the tensors. Index and file must agree.
class NamedParts {
 public:
  NamedParts(const fs::path& index, const SafetensorsFile& file)
      : index_(index.string()),
        path_(file.path().string()),
        what_(cat(path_, ": metadata '", shards_key, "'")) {
    const auto metadata = file.metadata().find(shards_key);
    if (metadata != file.metadata().end()) shards_ = parse_json(metadata->second, what_);
    for (const StoredTensor& t : file.tensors()) left_.insert(t.name);
  }
  void want_named(const StoredTensor& tensor, const Shard& shard) {
    left_.erase(tensor.name);
    require(elements_of(tensor) == shard.numel(), index_, ": '", tensor.name, "': wants ", shard.numel(),
            " elements of ", shard.global_shape(), " in ", path_, ", which has ", describe(tensor));
    if (shards_.is_null()) return;  // the file of one rank
    const Shard own = shard_from_json(JsonView(shards_, what_).at(tensor.name));
    require(own == shard, index_, ": '", tensor.name, "': wants another part of it in ", path_,
            " than the metadata of that file names");
  }
  void want_all_named() const {
    require(left_.empty(), path_, ": holds '", left_.empty() ? "" : *left_.begin(), "', which ", index_,
            " does not name");
  }

 private:
  std::string index_, path_, what_;
  Json shards_;
  std::set<std::string> left_;  // tensors that the index has not named yet
};

}  // namespace

void StoredOptimizer::open_index(const fs::path& index) {
  const Json json = read_json_file(index);
  const JsonView tensors = JsonView(json, index.string()).at("tensors");
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> files;
  std::map<std::string, NamedParts> named;
  for (const auto& item : tensors.value().items()) {
    const JsonView entry = tensors.member(item.key()), parts = entry.at("parts");
    for (const auto& part : parts.value().items()) {
      const JsonView shard = parts.member(part.key());
      const std::string& name = part.key();
      if (fs::path(name).filename() != name) shard.refuse("a file of the same directory");
      auto& file = files[name];
      if (!file) {
        file = std::make_shared<SafetensorsFile>(directory_ / name);
        named.emplace(name, NamedParts(index, *file));
      }
      const Shard part_shard = shard_from_json(shard);
      add(item.key(), file, part_shard);
      named.at(name).want_named(file->at(item.key()), part_shard);
    }
    const std::string_view dtype = entry.at("dtype").string();
    require(has(item.key()) && tensors_.at(item.key()).dtype == dtype, index.string(), ": '", item.key(),
            "': want parts in ", dtype);
  }
  for (const auto& file : named) file.second.want_all_named();
  for (const auto& entry : fs::directory_iterator(directory_)) {
    const fs::path& path = entry.path();
    if (path.extension() != ".safetensors" || files.contains(path.filename().string())) continue;
    NamedParts(index, SafetensorsFile(path)).want_all_named();
  }
}

// Of a checkpoint without an index.
void StoredOptimizer::open_files() {
  for (const auto& entry : fs::directory_iterator(directory_)) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto file = std::make_shared<SafetensorsFile>(entry.path());
    const auto metadata = file->metadata().find(shards_key);
    require(metadata != file->metadata().end() || entry.path().filename() == file_name(nullptr, 0),
            entry.path().string(), ": its metadata has no entry '", shards_key,
            "', which says what part of the optimizer's state the file holds");
    const std::string what = cat(entry.path().string(), ": metadata '", shards_key, "'");
    const Json shards = metadata == file->metadata().end() ? Json() : parse_json(metadata->second, what);
    for (const StoredTensor& t : file->tensors()) {
      const Shard shard = shards.is_null() ? Shard(file->meta(t).shape())
                                           : shard_from_json(JsonView(shards, what).at(t.name));
      require(elements_of(t) == shard.numel(), what, ": '", t.name, "': wants ", shard.numel(),
              " elements of ", shard.global_shape(), ", the file has another shape, ", describe(t));
      add(t.name, file, shard);
    }
  }
  require(!tensors_.empty(), directory_.string(), ": want ", file_name(nullptr, 0),
          " or the parts of several ranks, found no tensor");
}

void StoredOptimizer::add(const std::string& name, const std::shared_ptr<const SafetensorsFile>& file,
                          const Shard& shard) {
  const StoredTensor& stored = file->at(name);
  Entry& entry = tensors_[name];
  if (entry.parts.empty()) entry = {stored.dtype, shard.global_shape(), {}};
  require(entry.shape == shard.global_shape() && entry.dtype == stored.dtype, file->path().string(), ": '",
          name, "' is a part of ", stored.dtype, ' ', shard.global_shape(),
          ", other files have parts of another shape or dtype, ", entry.dtype, ' ', entry.shape);
  entry.parts.push_back({{file, &stored}, shard});
}

void StoredOptimizer::check(std::span<const StateTensor> wanted, Strictness strictness,
                            Communicator* ranks) const {
  NameList missing("missing in the checkpoint"), wrong("of another shape"), unexpected("not in the run");
  std::map<std::string_view, std::size_t> numbers;
  for (const auto& [name, entry] : tensors_) numbers.emplace(name, numbers.size());
  std::vector<std::int64_t> used(tensors_.size(), 0);
  for (const StateTensor& t : wanted) {
    const auto found = tensors_.find(t.name);
    if (found == tensors_.end()) {
      missing.add(t.name);
      continue;
    }
    used[numbers.at(t.name)] = 1;
    if (found->second.shape != t.shard.global_shape())
      wrong.add(cat(t.name, " is ", found->second.shape, ", want ", t.shard.global_shape()));
  }
  if (several(ranks)) ranks->host_all_reduce(std::span(used), Reduction::max);
  for (const auto& [name, number] : numbers)
    if (used[number] == 0) unexpected.add(std::string(name));
  using enum Strictness;
  const bool both = strictness == raise_all || strictness == log_all;
  const std::string differ = missing.text() + (both ? unexpected.text() : "");
  together(ranks, [&] {
    const bool raises = strictness == raise_all || strictness == raise_unexpected;
    const std::string errors = (raises ? differ : "") + wrong.text();
    require(
        errors.empty(), directory_.string(),
        ": the tensors are not those of the optimizer; was the checkpoint written with another optimizer?",
        errors);
  });
  if ((strictness == log_all || strictness == log_unexpected) && !differ.empty())
    log_warning(directory_.string(),
                ": the tensors are not those of the optimizer (checkpoint.strictness):", differ);
}

BytesRead StoredOptimizer::read(std::span<const StateTensor> wanted, Communicator* node,
                                const OnBytes& on_bytes) const {
  std::map<std::string_view, const StateTensor*> own;
  for (const StateTensor& t : wanted) own.emplace(t.name, &t);
  std::vector<WantedPart> parts;
  for (const auto& [name, entry] : tensors_) {
    const auto found = own.find(name);
    if (found == own.end())
      parts.push_back({name, Shard(entry.shape), Tensor::meta(entry.shape, DType::f32)});
    else
      parts.push_back({name, found->second->shard, found->second->value});
  }
  return read_parts(
      parts, [&](const WantedPart& part) { return tensors_.at(part.name).parts; }, node, on_bytes);
}

}  // namespace nemocube
