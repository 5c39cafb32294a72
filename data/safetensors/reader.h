#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/shard.h"
#include "core/tensor.h"
#include "data/files/regular_file.h"
#include "data/safetensors/format.h"

namespace nemocube {

/// A safetensors file that stays open: opening reads only the header; read() reads values. Replacing or
/// removing the file does not disturb its readers. When the file is cut off in place, reading
/// throws Error. (A mapped file would end the process when a page that is gone is touched.)
/// Many threads may call const members at once.
class SafetensorsFile {
 public:
  /// Opens the file and checks its header. Throws Error naming the file.
  explicit SafetensorsFile(std::filesystem::path path);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<StoredTensor>& tensors() const {
    return header_.tensors;
  }  ///< in the order of their bytes
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const StoredTensor* find(std::string_view name) const;  ///< null when absent
  const StoredTensor& at(std::string_view name) const;    ///< Error naming file and tensor when absent

  /// The value; F16 becomes f32. Error for other dtypes without DType and for more than six dimensions.
  Tensor tensor(const StoredTensor& which) const;
  Tensor tensor(std::string_view name) const { return tensor(at(name)); }
  /// A meta tensor with the shape and dtype of tensor(). Errors as there.
  Tensor meta(const StoredTensor& which) const;
  /// Reads the elements from `first` on, in row-major order, into a contiguous tensor, converting to its
  /// dtype as Tensor::copy_from() does.
  void read(const StoredTensor& which, std::int64_t first, const Tensor& into) const;
  /// Reads stored bytes of the tensor, from byte `begin` on.
  void read_bytes(const StoredTensor& which, std::int64_t begin, std::span<std::byte> to) const;
  /// Converts the stored bytes of some elements, from read_bytes(), into a contiguous
  /// tensor of as many elements, like read().
  void convert(const StoredTensor& which, std::span<const std::byte> bytes, const Tensor& into) const;

 private:
  RegularFile file_;
  SafetensorsHeader header_;
  std::map<std::string_view, const StoredTensor*> by_name_;
};

/// Bytes of a stored tensor, counted from its start.
struct StoredBytes {
  const SafetensorsFile* file = nullptr;  ///< null: none
  const StoredTensor* entry = nullptr;
  Range bytes;
};

class Quantized;  // data/safetensors/quantized.h

/// One tensor of a model and the file that holds it: values, or codes with scales that are stored beside
/// them.
struct StoredIn {
  std::shared_ptr<const SafetensorsFile> file;
  const StoredTensor* entry = nullptr;
  std::shared_ptr<const Quantized> quantized = nullptr;  ///< null: the elements are the values

  std::string file_name() const { return file->path().filename().string(); }
  const std::vector<std::int64_t>& shape() const;  ///< of the values
  std::string value_dtype() const;  ///< as in files: "BF16" for codes, whose values are rounded to BF16
  int element_bits() const;
  Tensor value() const;  ///< the whole tensor, in f32 for codes

  /// The bytes to read for some elements: their own, and their scales'.
  using Pieces = std::array<StoredBytes, 3>;
  Pieces pieces(Range elements) const;
  /// Converts the bytes of pieces(), one piece after the other, into a contiguous tensor of as many elements,
  /// in its dtype. Codes become values in f32, which are rounded once.
  void convert(Range elements, std::span<const std::byte> bytes, const Tensor& into) const;
  /// Reads the elements from `first` on into a contiguous tensor, converting like convert().
  void read(std::int64_t first, const Tensor& into) const;
};
std::int64_t bytes_of(const StoredIn::Pieces& pieces);
/// Reads all of the pieces, one after the other.
void read_pieces(const StoredIn::Pieces& pieces, std::vector<std::byte>& to);

using SafetensorsTensors = std::map<std::string, StoredIn, std::less<>>;

constexpr const char* single_file_name = "model.safetensors";
constexpr const char* index_file_name = "model.safetensors.index.json";

/// Opens `model.safetensors`, or the files named in `model.safetensors.index.json`. Throws Error when neither
/// or both exist, when index and files disagree about a tensor, or when two files hold the same tensor.
SafetensorsTensors open_safetensors_model(const std::filesystem::path& directory);

}  // namespace nemocube
