#include "data/safetensors/format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/quote.h"
#include "core/tensor.h"
#include "data/json/json.h"

namespace nemocube {
static_assert(std::endian::native == std::endian::little,
              "the format is little endian, and so are the loads");

namespace {
struct Row {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;
};
constexpr std::array<Row, 22> table{{
    {"F32", 32, DType::f32}, {"BF16", 16, DType::bf16}, {"F64", 64, DType::f64}, {"I32", 32, DType::i32},
    {"I64", 64, DType::i64}, {"U8", 8, DType::u8},      {"F16", 16, {}},         {"BOOL", 8, {}},
    {"I8", 8, {}},           {"I16", 16, {}},           {"U16", 16, {}},         {"U32", 32, {}},
    {"U64", 64, {}},         {"C64", 64, {}},           {"F4", 4, {}},           {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},      {"F8_E4M3", 8, {}},        {"F8_E5M2", 8, {}},      {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},  {"F8_E5M2FNUZ", 8, {}},
}};

const Row* find_row(std::string_view name) {
  const auto row = std::ranges::find(table, name, &Row::name);
  return row == table.end() ? nullptr : &*row;
}
}  // namespace

int stored_bits(std::string_view dtype) {
  const Row* row = find_row(dtype);
  return row ? row->bits : 0;
}

std::string_view stored_name(DType dtype) {
  return std::ranges::find(table, std::optional(dtype), &Row::dtype)->name;
}

std::optional<DType> dtype_of_stored(std::string_view dtype) {
  const Row* row = find_row(dtype);
  return row ? row->dtype : std::nullopt;
}

std::string describe(const StoredTensor& tensor) {
  std::string text = tensor.dtype + " [";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) text += cat(i ? ", " : "", tensor.shape[i]);
  return text + "]";
}

namespace {
StoredTensor read_entry(const std::string& name, const JsonView& entry) {
  // Messages quote names as they are.
  require(excerpt(name) == name, entry.file(), ": want printable tensor names of at most 200 bytes, got ",
          quote(name));
  StoredTensor tensor{name, std::string(entry.at("dtype").string()), {}, 0, 0};
  if (stored_bits(tensor.dtype) == 0) entry.at("dtype").refuse("the name of a dtype");
  const auto natural = [](const JsonView& v) {
    const std::int64_t n = v.integer();
    if (n < 0) v.refuse("an integer of at least 0");
    return n;
  };
  for (const JsonView& dim : entry.at("shape").elements()) tensor.shape.push_back(natural(dim));
  const std::vector<JsonView> offsets = entry.at("data_offsets").elements();
  if (offsets.size() != 2) entry.at("data_offsets").refuse("a list of begin and end");
  tensor.begin = natural(offsets[0]);
  tensor.end = natural(offsets[1]);
  return tensor;
}

void check_bytes(const StoredTensor& tensor, const std::string& what) {
  std::int64_t bits = stored_bits(tensor.dtype);
  bool overflow = false;
  for (std::int64_t dim : tensor.shape) overflow = overflow || __builtin_mul_overflow(bits, dim, &bits);
  const std::string which = cat(what, ": tensor '", tensor.name, "' (", describe(tensor), ")");
  require(!overflow, which, ": the shape is too large to count its bytes");
  require(bits % 8 == 0, which, ": elements of ", stored_bits(tensor.dtype), " bits do not fill whole bytes");
  require(tensor.end - tensor.begin == bits / 8, which, ": want ", bits / 8, " bytes, data_offsets give ",
          tensor.end - tensor.begin);
}

void check_tiling(const SafetensorsHeader& header, std::int64_t data_bytes, const std::string& what) {
  std::int64_t next = 0;
  for (const StoredTensor& t : header.tensors) {
    require(t.begin <= t.end, what, ": tensor '", t.name, "': data_offsets end (", t.end,
            ") before they begin (", t.begin, ")");
    require(t.begin == next, what, ": tensor '", t.name, "' begins at byte ", t.begin, " of the data, want ",
            next, t.begin < next ? " (overlap)" : " (gap)");
    next = t.end;
  }
  for (const StoredTensor& t : header.tensors) check_bytes(t, what);
  require(next == data_bytes, what, ": want ", next, " bytes of data after the header, got ", data_bytes,
          next > data_bytes ? " (file cut off?)" : "");
}
}  // namespace

std::int64_t safetensors_header_length(std::uint64_t first_bytes, std::int64_t file_bytes,
                                       const std::string& what) {
  require(file_bytes >= safetensors_length_bytes, what, ": want a safetensors file, got ", file_bytes,
          " bytes (too small for a header)");
  require(first_bytes <= most_header_bytes, what, ": header length ", first_bytes, ": want at most ",
          most_header_bytes, " (is this a safetensors file?)");
  const auto length = static_cast<std::int64_t>(first_bytes);
  require(safetensors_length_bytes + length <= file_bytes, what, ": header length ", length,
          " goes beyond the file of ", file_bytes, " bytes (cut off?)");
  return length;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::int64_t file_bytes,
                                           const std::string& what) {
  const std::string place = what + ": header";
  const Json document =
      parse_json(text, place, {.max_bytes = most_header_bytes, .max_depth = 4, .non_finite = false});
  if (!document.is_object()) JsonView(document, place).refuse("an object");

  SafetensorsHeader header;
  header.data_begin = safetensors_length_bytes + static_cast<std::int64_t>(text.size());
  header.tensors.reserve(document.size());
  for (const auto& item : document.items()) {
    const JsonView entry(item.value(), place, item.key());
    if (item.key() == "__metadata__") {
      if (item.value().is_null()) continue;  // none, as for the safetensors library
      if (!item.value().is_object()) entry.refuse("an object");
      for (const auto& pair : item.value().items())
        header.metadata[pair.key()] = JsonView(pair.value(), place, "__metadata__." + pair.key()).string();
    } else {
      header.tensors.push_back(read_entry(item.key(), entry));
    }
  }
  std::ranges::stable_sort(header.tensors, {},
                           [](const StoredTensor& t) { return std::pair(t.begin, t.end); });
  check_tiling(header, file_bytes - header.data_begin, what);
  return header;
}

std::string format_safetensors_header(std::span<const StoredTensor> tensors,
                                      const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto quoted = [](const std::string& s) { return dump_json(Json(s)); };
  const auto next = [&] {
    if (text.size() > 1) text += ',';
  };
  if (!metadata.empty()) {
    Json object = Json::object();
    for (const auto& [key, value] : metadata) object[key] = value;
    text += "\"__metadata__\":" + dump_json(object, -1);
  }
  for (const StoredTensor& t : tensors) {
    next();
    text += quoted(t.name) + ":{\"dtype\":" + quoted(t.dtype) + ",\"shape\":" + dump_json(Json(t.shape), -1) +
            cat(",\"data_offsets\":[", t.begin, ",", t.end, "]}");
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  require(static_cast<std::int64_t>(text.size()) <= most_header_bytes, "safetensors header of ",
          tensors.size(), " tensors: want at most ", most_header_bytes, " bytes, got ", text.size(),
          "; use smaller shards");
  const std::uint64_t length = text.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + text;
}

}  // namespace nemocube
