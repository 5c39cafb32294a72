#include "data/files/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "data/files/open_file.h"

namespace nemocube {
namespace {
std::string system_message(int code) { return std::generic_category().message(code); }

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISSOCK(mode)) return "a socket";
  return "something else";
}
}  // namespace

RegularFile::RegularFile(std::filesystem::path path)
    // O_NONBLOCK: opening a FIFO does not wait for a writer. It has no effect on regular files.
    : path_(std::move(path)),
      descriptor_(open_file(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
  const int open_code = errno;
  struct stat status {};
  // A socket cannot even be opened.
  const bool known =
      descriptor_ >= 0 ? ::fstat(descriptor_, &status) == 0 : ::stat(path_.c_str(), &status) == 0;
  const int code = descriptor_ >= 0 ? errno : open_code;
  if (descriptor_ >= 0 && known && S_ISREG(status.st_mode)) {
    size_ = status.st_size;
    return;
  }
  if (descriptor_ >= 0) ::close(descriptor_);
  require(!known || S_ISREG(status.st_mode), path_.string(), ": want a regular file, got ",
          kind_of(status.st_mode));
  fail(path_.string(), ": cannot ", descriptor_ >= 0 ? "read" : "open", ": ", open_message(code));
}

RegularFile::~RegularFile() { ::close(descriptor_); }

std::size_t RegularFile::read(char* to, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::read(descriptor_, to + done, bytes - done);
    if (got < 0 && errno == EINTR) continue;
    require(got >= 0, path_.string(), ": cannot read: ", system_message(errno));
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

void RegularFile::read_at(std::int64_t begin, std::span<std::byte> to) const {
  const std::int64_t end = begin + static_cast<std::int64_t>(to.size());
  while (!to.empty()) {
    const ssize_t got =
        ::pread(descriptor_, to.data(), to.size(), end - static_cast<std::int64_t>(to.size()));
    if (got < 0 && errno == EINTR) continue;
    require(got >= 0, path_.string(), ": cannot read: ", system_message(errno));
    require(got > 0, path_.string(), ": has no bytes from ", end - std::ssize(to), " on; it had ", size_,
            " bytes when it was opened");
    to = to.subspan(static_cast<std::size_t>(got));
  }
}

std::string read_text_file(const std::filesystem::path& path, std::int64_t max_bytes) {
  RegularFile file(path);
  require(file.size() <= max_bytes, path.string(), ": want at most ", max_bytes, " bytes, got ", file.size());
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  const std::size_t done = file.read(text.data(), text.size());
  require(done == text.size(), path.string(), ": ended after ", done, " of ", text.size(), " bytes");
  return text;
}

FileSum for_each_file_line(const std::filesystem::path& path, std::int64_t max_line_bytes,
                           const std::function<void(std::string_view, std::int64_t)>& fn) {
  RegularFile file(path);
  FileSum sum;
  std::string buffer;       // the lines that were read but not handed to fn
  std::int64_t number = 0;  // of the last line handed to fn
  const auto give = [&](std::string_view line) {
    require(static_cast<std::int64_t>(line.size()) <= max_line_bytes, path.string(), ": line ", number + 1,
            ": want at most ", max_line_bytes, " bytes, got more");
    fn(line, ++number);
  };
  constexpr std::size_t step = std::size_t{1} << 20;
  for (bool more = true; more;) {
    const std::size_t searched = buffer.size();
    buffer.resize(searched + step);
    const std::size_t got = file.read(buffer.data() + searched, step);
    more = got == step;
    buffer.resize(searched + got);
    sum.add(std::as_bytes(std::span(buffer).subspan(searched)));
    std::size_t begin = 0;
    for (std::size_t end = buffer.find('\n', searched); end != buffer.npos; end = buffer.find('\n', begin)) {
      give(std::string_view(buffer).substr(begin, end - begin));
      begin = end + 1;
    }
    buffer.erase(0, begin);
    if (static_cast<std::int64_t>(buffer.size()) > max_line_bytes) give(buffer);
  }
  if (!buffer.empty()) give(buffer);
  return sum;
}

}  // namespace nemocube
