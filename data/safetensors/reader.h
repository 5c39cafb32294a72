#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/tensor.h"
#include "data/safetensors/format.h"

namespace nemocube {

/// A safetensors file mapped into memory: opening reads only the header; pages of the data are read when they
/// are touched. Replacing the file by a rename does not disturb the mapping; truncating it in place does.
class SafetensorsFile {
 public:
  /// Maps the file and checks its header. Throws Error naming the file.
  explicit SafetensorsFile(std::filesystem::path path);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::vector<StoredTensor>& tensors() const {
    return header_.tensors;
  }  ///< in the order of their bytes
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const StoredTensor* find(std::string_view name) const;  ///< null when absent
  const StoredTensor& at(std::string_view name) const;    ///< Error naming file and tensor when absent

  /// The value. Borrowed from the mapping (read-only!) where the bytes are aligned for their dtype, else a
  /// copy; F16 becomes a copy in f32. Stays valid after this object is gone. Error for dtypes without DType
  /// and for more than six dimensions.
  Tensor tensor(const StoredTensor& which) const;
  Tensor tensor(std::string_view name) const { return tensor(at(name)); }
  /// The stored bytes, valid as long as owner() is held.
  std::span<const std::byte> bytes(const StoredTensor& which) const;
  std::shared_ptr<const void> owner() const { return mapping_; }

 private:
  struct Mapping;
  std::filesystem::path path_;
  std::shared_ptr<const Mapping> mapping_;
  SafetensorsHeader header_;
  std::map<std::string_view, const StoredTensor*> by_name_;
};

/// One tensor of a model and the file that holds it.
struct StoredIn {
  std::shared_ptr<const SafetensorsFile> file;
  const StoredTensor* entry = nullptr;
  Tensor value() const { return file->tensor(*entry); }
  std::string file_name() const { return file->path().filename().string(); }
};
using SafetensorsTensors = std::map<std::string, StoredIn, std::less<>>;

constexpr const char* single_file_name = "model.safetensors";
constexpr const char* index_file_name = "model.safetensors.index.json";

/// Opens `model.safetensors`, or the files named in `model.safetensors.index.json`. Throws Error when neither
/// or both are there, when index and files disagree about a tensor, or when two files hold the same one.
SafetensorsTensors open_safetensors_model(const std::filesystem::path& directory);

}  // namespace nemocube
