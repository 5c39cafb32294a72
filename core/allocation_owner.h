#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

/// The owner of memory: what the memory is for. An allocator remembers the owner of each block, so that an
/// error can name the largest owners.
namespace nemocube {

/// Names the owner of tensors of this thread while an object lives: "mamba block 3", "gradients". The
/// innermost object counts. Without an object, the current zone of the profile counts, which is an operation.
class AllocationOwner {
 public:
  /// `name` lives as long as the process: a literal, or of kept_name(). Null: as if the object were not
  /// there.
  explicit AllocationOwner(const char* name);
  ~AllocationOwner();
  AllocationOwner(const AllocationOwner&) = delete;
  AllocationOwner& operator=(const AllocationOwner&) = delete;

  static const char* current();
  /// The name of the innermost object; null without an object.
  static const char* named();

 private:
  const char* outer_;
};

/// A copy of `text` that lives as long as the process; equal texts share one copy.
const char* kept_name(std::string_view text);

/// The bytes that blocks in use hold, by owner. The allocator locks.
class OwnedBytes {
 public:
  /// Needs no memory for an owner that has been added before.
  void add(const char* owner, std::int64_t bytes) { bytes_[owner] += bytes; }
  /// The largest owners, the largest first: " (gradients 1.20 GB, mamba block 3 30.0 MB, others 2.00 MB)".
  /// Empty when nothing is held.
  std::string largest() const;

 private:
  std::unordered_map<const char*, std::int64_t> bytes_;
};

}  // namespace nemocube
