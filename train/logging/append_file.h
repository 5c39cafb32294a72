#pragma once
#include <filesystem>
#include <string_view>

namespace nemocube {

/// A log file that grows at its end. Errors name the path and the reason, such as a full disk.
class AppendFile {
 public:
  /// Creates the file and the folders above it.
  explicit AppendFile(const std::filesystem::path& path);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  AppendFile& operator=(AppendFile&&) = delete;

  /// The bytes reach the operating system before append() returns, in one call where it takes all of them: a
  /// crash of the program loses none.
  void append(std::string_view bytes);
  /// Whether the name still leads to this file: false when that was removed, renamed or replaced.
  bool has_its_name() const;
  /// Opens, or creates, the file that has the name now.
  void reopen();
  const std::filesystem::path& path() const { return path_; }

 private:
  void open();
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace nemocube
