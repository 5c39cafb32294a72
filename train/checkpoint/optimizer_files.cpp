#include "train/checkpoint/optimizer_files.h"

#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/rng.h"
#include "data/json/json.h"
#include "data/safetensors/reader.h"
#include "data/safetensors/writer.h"
#include "parallel/comm/together.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

constexpr const char* shards_key = "shards";

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

Json describe(const Shard& shard) {
  const auto dims = shard.global_shape().dims();
  Json json{{"shape", std::vector<std::int64_t>(dims.begin(), dims.end())}};
  if (shard.shape() != shard.global_shape()) {
    Json& ranges = json["ranges"] = Json::array();
    for (const auto& of_dim : shard.ranges()) {
      Json& list = ranges.emplace_back(Json::array());
      for (const Range& range : of_dim) list.push_back({range.begin, range.end});
    }
  }
  if (const auto& flat = shard.flat_range(); flat && !shard.whole()) json["flat"] = {flat->begin, flat->end};
  return json;
}

std::string describe(const std::vector<StateTensor>& state) {
  Json shards = Json::object();
  for (const StateTensor& t : state) shards[t.name] = describe(t.shard);
  return dump_json(shards, -1);
}

// What this rank keeps, by the rank whose file holds it: the lowest that keeps the same part of a tensor. All ranks
// call together.
std::map<int, std::vector<StateTensor>> state_by_writer(const Optimizer& optimizer, Communicator* ranks) {
  std::vector<StateTensor> kept = kept_state(optimizer);
  std::map<int, std::vector<StateTensor>> by_writer;
  if (!several(ranks)) {
    by_writer[0] = std::move(kept);
    return by_writer;
  }
  std::vector<std::uint64_t> own;
  for (const StateTensor& t : kept) own.push_back(hash_name(t.name + dump_json(describe(t.shard), -1)));
  const std::string_view bytes(reinterpret_cast<const char*>(own.data()), own.size() * sizeof own[0]);
  std::unordered_map<std::uint64_t, int> lowest;
  int rank = 0;
  for (const std::string& text : gather_texts(ranks, bytes)) {
    for (std::size_t at = 0; at < text.size(); at += sizeof own[0]) {
      std::uint64_t part = 0;
      std::memcpy(&part, text.data() + at, sizeof part);
      lowest.emplace(part, rank);
    }
    ++rank;
  }
  for (std::size_t i = 0; i < kept.size(); ++i) by_writer[lowest.at(own[i])].push_back(std::move(kept[i]));
  return by_writer;
}

void check_part(const SafetensorsFile& file, const Json& shards, const StateTensor& want) {
  const auto entry = shards.find(want.name);
  const Json part = describe(want.shard);
  require(entry != shards.end() && *entry == part, file.path().string(), ": ", want.name, ": want the part ",
          dump_json(part, -1), ", got ", entry == shards.end() ? "none" : dump_json(*entry, -1));
}

// `parts`: the file is that of one of several ranks; `all`: and holds nothing else.
void load_file(const fs::path& path, const std::vector<StateTensor>& into, bool parts, bool all) {
  const SafetensorsFile file(path);
  Json shards;
  if (parts) {
    const auto entry = file.metadata().find(shards_key);
    require(entry != file.metadata().end(), path.string(), ": its metadata has no entry '", shards_key,
            "', which says what part of the optimizer's state the file holds");
    shards = parse_json(entry->second, cat(path.string(), ": metadata '", shards_key, "'"));
  }
  std::vector<std::string> missing;
  std::size_t used = 0;
  for (const StateTensor& t : into) {
    const StoredTensor* stored = file.find(t.name);
    if (!stored) {
      missing.push_back(t.name);
      continue;
    }
    if (parts) check_part(file, shards, t);
    const Tensor source = file.meta(*stored);
    check_shape(path.string() + ": " + t.name, source, t.value.shape());
    check_dtype(path.string() + ": " + t.name, source, t.value.dtype());
    file.read(*stored, 0, t.value);
    ++used;
  }
  require(missing.empty(), path.string(), ": ", missing.size(), " tensors are missing, the first is '",
          missing.empty() ? "" : missing[0],
          "'; was it written with another optimizer or model.torch_dtype?");
  require(!all || used == file.tensors().size(), path.string(), ": holds ", file.tensors().size(),
          " tensors, the optimizer has ", used,
          "; was it written with another optimizer or model.torch_dtype?");
}

}  // namespace

FileSums save_optimizer(const fs::path& directory, const Optimizer& optimizer, Communicator* ranks) {
  const int rank = ranks ? ranks->rank() : 0;
  const auto by_writer = state_by_writer(optimizer, ranks);
  const auto written = by_writer.find(rank);
  const bool writes = written != by_writer.end();
  FileSum own;
  together(ranks, [&] {
    if (!writes) return;
    std::vector<TensorSource> tensors;
    for (const StateTensor& t : written->second)
      tensors.push_back(source_of(t.name, t.value, t.value.dtype()));
    SafetensorsMetadata metadata = pytorch_metadata;
    if (several(ranks)) metadata[shards_key] = describe(written->second);
    own = write_safetensors(directory / file_name(ranks, rank), std::move(tensors), metadata);
  });
  const std::string_view bytes(reinterpret_cast<const char*>(&own), sizeof own);
  const auto of_ranks = gather_texts(ranks, writes ? bytes : std::string_view());
  FileSums sums;
  for (std::size_t r = 0; r < of_ranks.size(); ++r)
    if (!of_ranks[r].empty())
      std::memcpy(&sums[file_name(ranks, static_cast<int>(r))], of_ranks[r].data(), sizeof own);
  return sums;
}

void load_optimizer(const fs::path& directory, Optimizer& optimizer, Communicator* ranks) {
  const int rank = ranks ? ranks->rank() : 0;
  const auto by_writer = state_by_writer(optimizer, ranks);
  together(ranks, [&] {
    for (const auto& [writer, state] : by_writer)
      load_file(directory / file_name(ranks, writer), state, several(ranks), writer == rank);
  });
}

}  // namespace nemocube
