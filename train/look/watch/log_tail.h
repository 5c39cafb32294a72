#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace nemocube {

/// Follows a file to which another process appends lines, perhaps on another machine.
/// Reads new bytes only, and nothing twice.
///
/// Each poll() opens the file anew: NFS then asks the server for the present contents. A file that was
/// replaced, cut or rewritten since (another inode, fewer bytes, other bytes before the place reached) is
/// read from its beginning, and a file that has gone counts as empty. Of a file that is large when it is
/// first seen only the last `most_history` bytes are read. Holds a piece of a file and an unfinished line of
/// at most `most_line` bytes; longer lines are left out.
class LogTail {
 public:
  static constexpr std::int64_t default_history = std::int64_t{64} << 20;
  static constexpr std::size_t piece_bytes = std::size_t{1} << 20, most_line = std::size_t{16} << 20;

  explicit LogTail(std::filesystem::path path, std::int64_t most_history = default_history);

  /// on_line gets each new complete line, without its end, in order; on_restart is called before the lines of
  /// a file that is read from its beginning again. Reads one piece: true when there is more. Throws Error
  /// naming path and reason for a file that cannot be read; only an absent file counts as empty.
  bool poll(const std::function<void(std::string_view)>& on_line, const std::function<void()>& on_restart);

  const std::filesystem::path& path() const { return path_; }

 private:
  struct Identity {
    std::uint64_t device = 0, inode = 0;
    bool operator==(const Identity&) const = default;
  };
  bool read_piece(int file, std::int64_t size, const std::function<void(std::string_view)>& on_line);
  void take(std::string_view bytes, const std::function<void(std::string_view)>& on_line);
  bool continues(int file, std::int64_t size, const Identity& now) const;
  void begin(std::int64_t size, const Identity& now);

  std::filesystem::path path_;
  std::int64_t most_history_;
  Identity identity_;
  std::int64_t offset_ = -1;  // bytes taken; -1: the file has not been seen
  std::string before_;        // the last bytes before offset_, to notice that the file was rewritten
  std::string unfinished_;
  bool skipping_ = false;  // to the end of a line that is left out
};

}  // namespace nemocube
