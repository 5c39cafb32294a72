#include <nlohmann/json.hpp>

#include "tests/bad_input/refused.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
namespace fs = std::filesystem;

const char* const embeddings = "backbone.embeddings.weight";

struct Case {
  const char* name;
  std::function<void(const fs::path& weights)> damage;
  std::vector<std::string> parts;
};

std::function<void(const fs::path&)> header(const std::function<void(Json&)>& edit) {
  return [edit](const fs::path& p) { edit_safetensors(p, [&](RawSafetensors& f) { edit(f.header); }); };
}
}  // namespace

TEST_CASE("bad weights: forward names the file and what is wrong, and writes nothing") {
  const std::vector<Case> cases{
      {"truncated data",
       [](const fs::path& p) { fs::resize_file(p, fs::file_size(p) / 2); },
       {"model.safetensors", "cut off?"}},
      {"truncated header", [](const fs::path& p) { fs::resize_file(p, 100); }, {"header length", "cut off?"}},
      {"empty", [](const fs::path& p) { fs::resize_file(p, 0); }, {"0 bytes"}},
      {"oversized header",
       [](const fs::path& p) { spit(p, std::string("\0\0\0\0\0\0\0\x40", 8) + slurp(p)); },
       {"header length", "want at most"}},
      {"trailing bytes", [](const fs::path& p) { spit(p, slurp(p) + "xx"); }, {"bytes of data"}},
      {"git-lfs pointer",
       [](const fs::path& p) { spit(p, "version https://git-lfs.github.com/spec/v1\n"); },
       {"is this a safetensors file?"}},
      {"a directory", [](const fs::path& p) { fs::remove(p), fs::create_directory(p); }, {"regular file"}},
      {"missing", [](const fs::path& p) { fs::remove(p); }, {"model.safetensors.index.json", "neither"}},
      {"overlap",
       header([](Json& h) { h["lm_head.weight"]["data_offsets"] = h[embeddings]["data_offsets"]; }),
       {"overlap"}},
      {"integers",
       header([](Json& h) { h[embeddings]["dtype"] = "I32"; }),
       {embeddings, "I32", "want floating"}},
      {"negative size", header([](Json& h) { h[embeddings]["shape"][0] = -1; }), {embeddings, "-1"}},
      {"overflowing shape",
       header([](Json& h) {
         h[embeddings]["shape"] = {1LL << 40, 1LL << 40};
       }),
       {embeddings, "too large"}},
      {"unknown dtype", header([](Json& h) { h[embeddings]["dtype"] = "F8_E4M3"; }), {embeddings, "F8_E4M3"}},
      {"offsets of text",
       header([](Json& h) {
         h[embeddings]["data_offsets"] = {"a", "b"};
       }),
       {"data_offsets", "want an integer"}},
      {"transposed",
       header([](Json& h) {
         h[embeddings]["shape"] = {32, 96};
       }),
       {embeddings, "[32, 96]", "want floating [96, 32]"}},
      {"renamed",
       header([](Json& h) {
         const Json value = h["lm_head.weight"];
         h.erase("lm_head.weight");
         h["extra.weight"] = value;
       }),
       {"1 missing: lm_head.weight", "1 unexpected: extra.weight"}},
      {"no config",
       [](const fs::path& p) { fs::remove(p.parent_path() / "config.json"); },
       {"holds no model", "config.json"}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const ModelDir dir;
    c.damage(dir / "model.safetensors");
    check_refused(dir.path(), forward_here, c.parts);
  }
}

TEST_CASE("bad weights: shards and index that disagree are named") {
  const char* const index = "model.safetensors.index.json";
  const auto map_first = [&](const ModelDir& dir, const Json& file) {
    dir.edit_json(index, [&](Json& j) { j["weight_map"].begin().value() = file; });
  };
  const std::vector<std::pair<std::function<void(const ModelDir&)>, std::vector<std::string>>> cases{
      {[](const ModelDir& d) { fs::remove(d / "model-00002-of-00002.safetensors"); },
       {"model-00002-of-00002.safetensors", "No such file"}},
      {[&](const ModelDir& d) { map_first(d, "absent.safetensors"); },
       {"absent.safetensors", "No such file"}},
      {[&](const ModelDir& d) { map_first(d, "../outside.safetensors"); }, {index, "same directory"}},
      {[&](const ModelDir& d) { map_first(d, 5); }, {index, "want a string, got 5"}},
      {[&](const ModelDir& d) {
         d.edit_json(index, [](Json& j) { j["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"; });
       },
       {index, "ghost"}},
      {[&](const ModelDir& d) { spit(d / index, "{"); }, {index, "not valid JSON"}},
      {[&](const ModelDir& d) { spit(d / index, "{}"); }, {index, "weight_map"}},
  };
  for (const auto& [damage, parts] : cases) {
    CAPTURE(parts.back());
    const ModelDir dir("bf16_stored");
    damage(dir);
    check_refused(dir.path(), forward_here, parts);
  }
}
