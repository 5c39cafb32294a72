#include "data/files/link.h"

#include <fstream>
#include <system_error>

#include "core/error.h"
#include "data/json/atomic_file.h"

namespace nemocube {

namespace fs = std::filesystem;

namespace {

bool is_name_of_link(const fs::path& name) { return name == "LATEST" || name == "LOWEST_VAL"; }

/// What systems say where a file system has no symbolic links.
bool has_no_links(const std::error_code& error) {
  return error == std::errc::operation_not_permitted || error == std::errc::function_not_supported ||
         error == std::errc::not_supported || error == std::errc::operation_not_supported;
}

/// The name in a small file; empty where there is no such file, or something else in it.
fs::path name_in_file(const fs::path& file) {
  std::error_code error;
  constexpr std::size_t longest = 256;  // of the name of an entry, with the line end
  if (!fs::is_regular_file(file, error) || fs::file_size(file, error) > longest || error) return {};
  std::ifstream in(file, std::ios::binary);
  std::string name;
  if (!std::getline(in, name) || in.eof() || in.peek() != std::ifstream::traits_type::eof()) return {};
  if (name.empty() || name == "." || name == ".." || name.find('/') != name.npos ||
      name.find('\0') != name.npos)
    return {};
  return name;
}

void make_symbolic_link(const fs::path& link, const std::string& name, std::error_code& error) {
  const fs::path fresh = temporary_sibling(link);
  fs::create_symlink(name, fresh, error);
  if (!error) fs::rename(fresh, link, error);
  if (std::error_code ignored; error) fs::remove(fresh, ignored);
}

}  // namespace

fs::path linked_name(const fs::path& link) {
  std::error_code none;
  const fs::path target = fs::read_symlink(link, none);
  if (!target.empty() || !is_name_of_link(link.filename())) return target;
  return name_in_file(link);
}

void point_link(const fs::path& link, const std::string& name) {
  if (linked_name(link) == name) return;
  std::error_code error;
  make_symbolic_link(link, name, error);
  if (has_no_links(error)) {
    write_file_atomically(link, name + "\n");
    return;
  }
  require(!error, link.string(), ": cannot be pointed at ", name, ": ", error.message());
}

fs::path through_links(const fs::path& path) {
  fs::path found;
  for (const fs::path& part : path) {
    found /= part;
    if (!is_name_of_link(part)) continue;
    if (const fs::path name = name_in_file(found); !name.empty()) found.replace_filename(name);
  }
  return found;
}

bool has_symbolic_links(const fs::path& folder) {
  const fs::path tried = temporary_sibling(folder / "LATEST");
  std::error_code error, ignored;
  fs::create_symlink("nothing", tried, error);
  fs::remove(tried, ignored);
  return !has_no_links(error);
}

}  // namespace nemocube
