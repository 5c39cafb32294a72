#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/datasets/dataset.h"
#include "data/files/regular_file.h"

namespace nemocube {

/// Token ids in Megatron's files PREFIX.idx and PREFIX.bin: numbered sequences of ids, back to back in the
/// .bin file. Little-endian, without padding, PREFIX.idx holds
///     "MMIDIDX\0\0", u64 version 1, u8 code of the ids' type, u64 N sequences, u64 D,
///     i32 lengths[N] in ids, i64 begins[N] in bytes of the .bin file, i64 documents[D]
/// where `documents` are the first sequences of the documents, from 0 to N. Codes are 1 u8, 2 i8, 3 i16, 4
/// i32, 5 i64, 8 u16. Source: Megatron-LM, megatron/core/datasets/indexed_dataset.py.
class IndexedTokens {
 public:
  /// Reads the .idx file. Throws Error naming the file and its mistake: another header, ids that are no
  /// integers, a sequence outside of the .bin file, documents that do not ascend from 0 to N.
  explicit IndexedTokens(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  /// The .idx file with the sum of all its bytes, and the .bin file, which may be too large to be read whole,
  /// with sampled_sum().
  std::vector<DataFile> files() const { return {{prefix_ + ".idx", idx_sum_}, {bin_.path(), bin_sum_}}; }
  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t length(std::int64_t sequence) const { return lengths_[static_cast<std::size_t>(sequence)]; }

  /// Appends the ids [offset, offset + count) of a sequence. Many threads may call this at once. Throws Error
  /// naming the file and the place of an id that is negative or not below `id_limit`, and when the file has
  /// been cut off.
  void read(std::int64_t sequence, std::int64_t offset, std::int64_t count, std::int64_t id_limit,
            std::vector<std::int64_t>& ids) const;

 private:
  std::string prefix_;
  RegularFile bin_;
  FileSum idx_sum_, bin_sum_;
  int code_ = 0;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> begins_;
};

/// PREFIX of a name that may end in .bin or .idx.
std::string token_file_prefix(const std::string& name);

}  // namespace nemocube
