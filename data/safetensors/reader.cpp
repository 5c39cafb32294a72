#include "data/safetensors/reader.h"

#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "data/files/regular_file.h"
#include "data/json/json.h"

namespace nemocube {

struct SafetensorsFile::Mapping {
  void* data = nullptr;
  std::size_t size = 0;

  explicit Mapping(const std::filesystem::path& path) {
    const RegularFile file(path);
    if (file.size() == 0) return;
    const auto bytes = static_cast<std::size_t>(file.size());
    void* mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
    require(mapped != MAP_FAILED, path.string(), ": cannot map: ", std::generic_category().message(errno));
    data = mapped;
    size = bytes;
  }
  ~Mapping() {
    if (data) ::munmap(data, size);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data), size}; }
};

SafetensorsFile::SafetensorsFile(std::filesystem::path path)
    : path_(std::move(path)),
      mapping_(std::make_shared<const Mapping>(path_)),
      header_(parse_safetensors_header(mapping_->bytes(), path_.string())) {
  for (const StoredTensor& t : header_.tensors) by_name_.emplace(t.name, &t);
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const StoredTensor& SafetensorsFile::at(std::string_view name) const {
  const StoredTensor* found = find(name);
  require(found != nullptr, path_.string(), ": no tensor '", name, "' among its ", tensors().size());
  return *found;
}

std::span<const std::byte> SafetensorsFile::bytes(const StoredTensor& which) const {
  return mapping_->bytes().subspan(static_cast<std::size_t>(header_.data_begin + which.begin),
                                   static_cast<std::size_t>(which.bytes()));
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

Tensor SafetensorsFile::tensor(const StoredTensor& which) const {
  const std::string what = cat(path_.string(), ": tensor '", which.name, "'");
  require(which.shape.size() <= Shape::max_dims, what, ": want at most ", Shape::max_dims,
          " dimensions, got ", which.shape.size());
  const Shape shape{std::span(which.shape)};
  const std::span<const std::byte> source = bytes(which);
  if (which.dtype == "F16") {
    const Tensor value = Tensor::empty(shape, DType::f32, Device::cpu);
    float* to = value.data<float>();
    for (std::int64_t i = 0; i < value.numel(); ++i) {
      std::uint16_t half;
      std::memcpy(&half, source.data() + 2 * i, 2);
      to[i] = float_of_half(half);
    }
    return value;
  }
  const std::optional<DType> dtype = dtype_of_stored(which.dtype);
  require(dtype.has_value(), what, ": want F32, BF16, F16, F64, I32, I64 or U8, got ", which.dtype);
  const auto address = reinterpret_cast<std::uintptr_t>(source.data());
  if (!source.empty() && address % static_cast<std::uintptr_t>(size_of(*dtype)) == 0)
    return Tensor::borrow(const_cast<std::byte*>(source.data()), shape, *dtype, mapping_);
  const Tensor value = Tensor::empty(shape, *dtype, Device::cpu);
  if (!source.empty()) std::memcpy(value.raw(), source.data(), source.size());
  return value;
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
    const std::string& file = name.string();
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
