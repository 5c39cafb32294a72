#include "data/safetensors/reader.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <vector>

#include "data/json/json.h"

namespace nemocube {

namespace {
SafetensorsHeader read_header(const RegularFile& file) {
  const std::string what = file.path().string();
  std::uint64_t first = 0;
  const auto bytes = std::min<std::int64_t>(file.size(), sizeof first);
  file.read_at(0, std::as_writable_bytes(std::span(&first, 1)).first(static_cast<std::size_t>(bytes)));
  const std::int64_t length = safetensors_header_length(first, file.size(), what);
  std::string text(static_cast<std::size_t>(length), '\0');
  file.read_at(safetensors_length_bytes, std::as_writable_bytes(std::span(text)));
  return parse_safetensors_header(text, file.size(), what);
}
}  // namespace

SafetensorsFile::SafetensorsFile(std::filesystem::path path)
    : file_(std::move(path)), header_(read_header(file_)) {
  for (const StoredTensor& t : header_.tensors) by_name_.emplace(t.name, &t);
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const StoredTensor& SafetensorsFile::at(std::string_view name) const {
  const StoredTensor* found = find(name);
  require(found != nullptr, path().string(), ": no tensor '", name, "' among its ", tensors().size());
  return *found;
}

void SafetensorsFile::read_bytes(const StoredTensor& which, std::int64_t begin,
                                 std::span<std::byte> to) const {
  expect(begin >= 0 && begin + std::ssize(to) <= which.bytes(), path().string(), ": bytes [", begin, ", ",
         begin + std::ssize(to), ") of the ", which.bytes(), " of '", which.name, "'");
  file_.read_at(header_.data_begin + which.begin + begin, to);
}

namespace {
/// IEEE half precision, exactly.
float float_of_half(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16, exponent = (half >> 10) & 31u,
                      fraction = half & 0x3ffu;
  if (exponent == 0) {
    const float small = std::ldexp(static_cast<float>(fraction), -24);
    return sign ? -small : small;
  }
  const std::uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}
}  // namespace

namespace {
std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {tensor.host_bytes(), static_cast<std::size_t>(tensor.bytes())};
}

/// The dtype in which a stored tensor is read.
DType read_dtype(const StoredTensor& which, const std::filesystem::path& file) {
  const std::optional<DType> dtype = which.dtype == "F16" ? DType::f32 : dtype_of_stored(which.dtype);
  require(dtype.has_value(), file.string(), ": tensor '", which.name,
          "': want F32, BF16, F16, F64, I32, I64 or U8, got ", which.dtype);
  return *dtype;
}
}  // namespace

Tensor SafetensorsFile::meta(const StoredTensor& which) const {
  require(which.shape.size() <= Shape::max_dims, path().string(), ": tensor '", which.name,
          "': want at most ", Shape::max_dims, " dimensions, got ", which.shape.size());
  return Tensor::meta(Shape{std::span(which.shape)}, read_dtype(which, path()));
}

Tensor SafetensorsFile::tensor(const StoredTensor& which) const {
  const Tensor described = meta(which);
  const Tensor value = Tensor::empty(described.shape(), described.dtype(), Device::cpu);  // of the file
  read(which, 0, value);
  return value;
}

void SafetensorsFile::read(const StoredTensor& which, std::int64_t first, const Tensor& into) const {
  expect(into.contiguous(), path().string(), ": '", which.name, "' is to be read into rows apart");
  if (into.numel() == 0) return;
  const bool half = which.dtype == "F16";
  const DType dtype = read_dtype(which, path());
  const std::int64_t element_bytes = half ? 2 : size_of(dtype);
  if (!half && dtype == into.dtype() && into.device() == Device::cpu)  // read in place
    return read_bytes(which, first * element_bytes, bytes_of(into));
  constexpr std::int64_t piece =
      1 << 18;  // elements: few enough to stay in the cache until they are converted
  const Tensor flat = into.reshape({-1});
  std::vector<std::byte> bytes;
  for (std::int64_t at = 0; at < flat.numel(); at += piece) {
    const std::int64_t count = std::min(piece, flat.numel() - at);
    bytes.resize(static_cast<std::size_t>(count * element_bytes));
    read_bytes(which, (first + at) * element_bytes, bytes);
    convert(which, bytes, flat.narrow(0, at, count));
  }
}

void SafetensorsFile::convert(const StoredTensor& which, std::span<const std::byte> bytes,
                              const Tensor& into) const {
  const std::int64_t count = into.numel();
  if (which.dtype == "F16") {
    expect(std::ssize(bytes) == 2 * count, path().string(), ": ", bytes.size(), " bytes for ", count,
           " elements of '", which.name, "'");
    const Tensor singles = Tensor::empty({count}, DType::f32, Device::cpu);  // of the file
    const auto* halves = reinterpret_cast<const std::uint16_t*>(bytes.data());
    std::transform(halves, halves + count, singles.data<float>(), float_of_half);
    return into.copy_from(singles.reshape(into.shape()));
  }
  const DType dtype = read_dtype(which, path());
  expect(std::ssize(bytes) == size_of(dtype) * count, path().string(), ": ", bytes.size(), " bytes for ",
         count, " elements of '", which.name, "'");
  into.copy_from(Tensor::borrow(const_cast<std::byte*>(bytes.data()), into.shape(), dtype, nullptr));
}

namespace {
void add_tensors(SafetensorsTensors& all, const std::shared_ptr<const SafetensorsFile>& file) {
  for (const StoredTensor& t : file->tensors()) {
    const auto [place, added] = all.emplace(t.name, StoredIn{file, &t});
    require(added, file->path().string(), ": tensor '", t.name, "' is also in ", place->second.file_name());
  }
}
}  // namespace

SafetensorsTensors open_safetensors_model(const std::filesystem::path& directory) {
  const std::filesystem::path single = directory / single_file_name, index = directory / index_file_name;
  std::error_code error;  // an unreadable directory counts as absent
  require(std::filesystem::is_directory(directory, error), directory.string(),
          ": want a directory with a model");
  const bool has_single = std::filesystem::exists(single, error),
             has_index = std::filesystem::exists(index, error);
  require(has_single || has_index, directory.string(), ": want ", single_file_name, " or ", index_file_name,
          ", found neither");
  require(!has_single || !has_index, directory.string(), ": has both ", single_file_name, " and ",
          index_file_name, "; remove the one that is not meant");
  SafetensorsTensors all;
  if (has_single) {
    add_tensors(all, std::make_shared<SafetensorsFile>(single));
    return all;
  }
  const Json document = read_json_file(index);
  const JsonView map = JsonView(document, index.string()).at("weight_map");
  if (!map.value().is_object()) map.refuse("an object");
  std::map<std::string, std::string> wanted;
  std::set<std::string> files;
  for (const auto& item : map.value().items()) {
    const JsonView name(item.value(), index.string(), cat("weight_map.", item.key()));
    const std::string file(name.string());
    if (file.empty() || file.find('/') != file.npos || file == "." || file == "..")
      name.refuse("the name of a file in the same directory");
    wanted.emplace(item.key(), file);
    files.insert(file);
  }
  for (const std::string& file : files) add_tensors(all, std::make_shared<SafetensorsFile>(directory / file));
  for (const auto& [name, file] : wanted) {
    const auto found = all.find(name);
    require(found != all.end() && found->second.file_name() == file, index.string(), ": tensor '", name,
            "' should be in ", file, ", which does not hold it");
  }
  for (const auto& [name, place] : all)
    require(wanted.contains(name), index.string(), ": ", place.file_name(), " holds tensor '", name,
            "', which the index does not know");
  return all;
}

}  // namespace nemocube
