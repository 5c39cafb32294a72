#pragma once
#include <filesystem>
#include <string>

/// Links in a folder to another entry of the folder, as RUN/LATEST leads to a checkpoint. A link is a
/// symbolic link, or, on file systems that have none (FAT, exFAT, some network and object stores), a small
/// file that holds the name of the entry and a line end.
namespace nemocube {

/// The name of the entry that `link` leads to; empty where `link` is neither kind of link. A file is a link
/// only under the names that runs give to links, LATEST and LOWEST_VAL.
std::filesystem::path linked_name(const std::filesystem::path& link);

/// Points `link` at the entry `name` of its folder, in one rename. Throws Error naming the link.
void point_link(const std::filesystem::path& link, const std::string& name);

/// A path as the system can open it: parts that are links of the second kind are
/// replaced by their targets. Symbolic links stay.
std::filesystem::path through_links(const std::filesystem::path& path);

/// Whether symbolic links can be made in a folder, which is tried.
bool has_symbolic_links(const std::filesystem::path& folder);

}  // namespace nemocube
