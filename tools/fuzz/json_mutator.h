#pragma once
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "data/json/json.h"
#include "tools/fuzz/fuzz.h"

/// libFuzzer's own changes of bytes.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t longest);

/// Changes of inputs that hold a document. After most changes of bytes a document is no JSON, and readers see
/// nothing of the change. So half of the changes are changes of the document's tree.
namespace nemocube::fuzz {

using Random = std::minstd_rand;

inline Json& any_value(Json& root, Random& random) {
  Json* at = &root;
  while (at->is_structured() && !at->empty() && random() % 5 != 0)
    at = &*std::next(at->begin(), static_cast<std::ptrdiff_t>(random() % at->size()));
  return *at;
}

/// The key of a member; "a" where no object is found.
inline std::string any_key(Json& root, Random& random) {
  for (int i = 0; i < 10; ++i)
    if (const Json& value = any_value(root, random); value.is_object() && !value.empty())
      return std::next(value.begin(), static_cast<std::ptrdiff_t>(random() % value.size())).key();
  return "a";
}

/// Another value in the place of `value`: a similar one, or one that is seldom thought of.
inline Json changed_leaf(const Json& value, Random& random) {
  if (value.is_string() && random() % 3 != 0) {
    std::string text = value;
    const std::size_t size = text.size();
    text.resize(size + 16);
    text.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(text.data()), size, text.size()));
    return text;
  }
  if (value.is_number() && random() % 3 != 0) {
    const double number = value;
    const std::array<double, 6> near{number + 1, number - 1, -number, number * 2, number / 2, number * 1e9};
    const double other = near[random() % near.size()];
    if (value.is_number_integer() && std::abs(other) < 9e18) return static_cast<std::int64_t>(other);
    return other;
  }
  static const std::array<Json, 16> odd{nullptr,
                                        true,
                                        false,
                                        0,
                                        1,
                                        -1,
                                        0.5,
                                        1e308,
                                        4294967296,
                                        9223372036854775807,
                                        18446744073709551615u,
                                        "",
                                        "a",
                                        Json::array(),
                                        Json::object(),
                                        std::numeric_limits<double>::infinity()};
  return odd[random() % odd.size()];
}

/// Leaves out, adds, copies or changes a value.
inline void change(Json& root, Random& random) {
  const Json other = any_value(root, random);
  const std::string key = any_key(root, random);
  Json& place = any_value(root, random);
  const auto member = [&] {
    return std::next(place.begin(), static_cast<std::ptrdiff_t>(random() % place.size()));
  };
  switch (random() % 5) {
    case 0:
      if (place.is_structured() && !place.empty()) place.erase(member());
      break;
    case 1:
      if (place.is_object()) place[key] = other;
      if (place.is_array()) place.insert(place.empty() ? place.end() : member(), other);
      break;
    case 2:
      place = other;
      break;
    default:
      place = changed_leaf(place, random);
  }
}

/// What LLVMFuzzerCustomMutator does where the document is [begin, end) of the input. Returns the new size.
inline std::size_t mutate_json(std::uint8_t* data, std::size_t size, std::size_t longest, unsigned seed,
                               std::size_t begin, std::size_t end) {
  Random random(seed);
  const std::string_view input = text_of(data, size);
  if (begin <= end && random() % 2 == 0) try {
      Json root = parse_json(input.substr(begin, end - begin), "input");
      do change(root, random);
      while (random() % 2 == 0);
      const std::string all = cat(input.substr(0, begin), dump_json(root, -1), input.substr(end));
      if (all.size() <= longest) {
        std::memcpy(data, all.data(), all.size());
        return all.size();
      }
    } catch (const Error&) {
    }
  return LLVMFuzzerMutate(data, size, longest);
}

}  // namespace nemocube::fuzz
