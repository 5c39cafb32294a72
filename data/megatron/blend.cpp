#include "data/megatron/blend.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/quote.h"
#include "data/json/json.h"
#include "data/megatron/index_memory.h"
#include "data/megatron/indexed_tokens.h"
#include "data/megatron/weights.h"

namespace nemocube {

namespace {

constexpr std::array<const char*, 3> split_names{"train", "validation", "test"};

std::optional<double> number_in(std::string_view text) {
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || stop != text.data() + text.size() || !std::isfinite(number))
    return std::nullopt;
  return number;
}

Blend blend_of_list(const std::vector<std::string>& list, const std::string& where) {
  require(!list.empty(), where, ": want the prefix of a .bin and an .idx file, got an empty list");
  Blend blend;
  for (std::size_t i = 0; i < list.size(); i += 2)
    if (const auto weight = number_in(list[i]); weight && list.size() % 2 == 0) {
      require(*weight > 0, where, ": want weights above 0, got ", list[i]);
      blend.weights.push_back(*weight);
    }
  const bool weighted = !blend.weights.empty();
  require(!weighted || blend.weights.size() * 2 == list.size(), where,
          ": want weights and prefixes by turns, or prefixes alone, got ", blend.weights.size(),
          " numbers in a list of ", list.size());
  for (std::size_t i = weighted ? 1 : 0; i < list.size(); i += weighted ? 2 : 1)
    blend.prefixes.push_back(token_file_prefix(list[i]));
  if (blend.prefixes.size() == 1) blend.weights.clear();
  if (!blend.weights.empty()) blend.weights = normalised(blend.weights, where);
  return blend;
}

std::vector<std::string> files_of_pattern(const std::string& pattern) {
  glob_t found{};
  const int code = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::set<std::string> prefixes;
  for (std::size_t i = 0; i < found.gl_pathc; ++i)
    if (const std::string_view name = found.gl_pathv[i]; name.ends_with(".bin") || name.ends_with(".idx"))
      prefixes.insert(token_file_prefix(std::string(name)));
  ::globfree(&found);
  require(code == 0, quote(pattern), ": no file has a name of this pattern");
  require(!prefixes.empty(), quote(pattern),
          ": want token files, got no name of this pattern that ends in .bin or .idx");
  return {prefixes.begin(), prefixes.end()};
}

std::vector<std::string> texts_of(const JsonView& list) {
  std::vector<std::string> texts;
  if (list.value().is_string()) return {std::string(list.string())};
  for (const JsonView& item : list.elements())
    texts.push_back(item.value().is_number() ? item.value().dump() : std::string(item.string()));
  return texts;
}

NamedBlend blend_of_json(const std::string& file, MegatronSplit split) {
  const Json json = read_json_file(file);
  const JsonView view(json, file);
  if (!json.is_object()) return {blend_of_list(texts_of(view), file), false};
  const std::string name = split_names[static_cast<std::size_t>(split)];
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) {
    const bool alias = key == "valid" || key == "val" || key == "dev";
    if ((alias ? "validation" : key) == name) keys.push_back(key);
  }
  require(!keys.empty(), file, ": has no list for the split ", name);
  require(keys.size() == 1, file, ": want one list for the split ", name, ", got '", keys[0], "' and '",
          keys.back(), "'");
  return {blend_of_list(texts_of(view.at(keys[0])), cat(file, ": '", keys[0], "'")), true};
}

}  // namespace

NamedBlend read_blend(const std::vector<std::string>& paths, MegatronSplit split) {
  if (paths.size() != 1) return {blend_of_list(paths, "paths"), false};
  const std::string& path = paths[0];
  if (path.ends_with(".json")) return blend_of_json(path, split);
  if (path.find_first_of("*?[") == std::string::npos) return {blend_of_list(paths, "paths"), false};
  return {blend_of_list(files_of_pattern(path), "paths"), false};
}

std::pair<std::int64_t, std::int64_t> split_range(const std::string& shares, MegatronSplit split,
                                                  std::int64_t sequences) {
  std::vector<double> parts;
  for (std::size_t begin = 0; begin <= shares.size();) {
    const std::size_t end = std::min(shares.find(',', begin), shares.size());
    std::string_view word(shares.data() + begin, end - begin);
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    const auto share = number_in(word);
    require(share && *share >= 0, "split ", quote(shares),
            ": want the shares of train, validation and test, such as 900,50,50");
    parts.push_back(*share);
    begin = end + 1;
  }
  require(parts.size() <= 3 && std::ranges::any_of(parts, [](double part) { return part > 0; }), "split ",
          quote(shares), ": want up to three numbers, one of them above 0");
  parts.resize(3);
  parts = normalised(parts, "split " + quote(shares));
  const auto number = static_cast<std::size_t>(split);
  double begin = 0;
  for (std::size_t i = 0; i < number; ++i) begin += parts[i];
  const auto border = [&](double share) {
    return static_cast<std::int64_t>(std::nearbyint(share * static_cast<double>(sequences)));
  };
  const std::int64_t first = border(begin), last = border(begin + parts[number]);
  require(first < last, "split ", quote(shares), ": the part ", split_names[number], " of ", sequences,
          " sequences is empty");
  return {first, last};
}

std::vector<BlendSample> blend_samples(std::span<const double> weights, std::int64_t size,
                                       std::span<const std::int64_t> limits) {
  require_index_memory("a blend of token files", static_cast<double>(size) * sizeof(BlendSample));
  std::vector<BlendSample> places;
  places.reserve(static_cast<std::size_t>(size));
  std::vector<std::int64_t> taken(weights.size());
  for (std::int64_t i = 0; i < size; ++i) {
    const double reached = std::max(static_cast<double>(i), 1.0);
    std::size_t part = 0;
    double furthest = std::numeric_limits<double>::lowest();
    for (std::size_t k = 0; k < weights.size(); ++k) {
      // The product is rounded before the difference, as in Megatron's own code for x86-64: a fused
      // multiply-add would decide other ties. A compiler may not fuse what goes through memory.
      const volatile double due = weights[k] * reached;
      const double behind = due - static_cast<double>(taken[k]);
      if (behind <= furthest || (!limits.empty() && taken[k] == limits[k])) continue;
      part = k;
      furthest = behind;
    }
    places.push_back({static_cast<std::int64_t>(part), taken[part]++});
  }
  return places;
}

}  // namespace nemocube
