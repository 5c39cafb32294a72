#pragma once
#include <filesystem>
#include <string>

namespace nemocube {

/// The kinds of things that names of the Hugging Face Hub stand for.
enum class HubKind { model, dataset };

/// Whether the text is a name of the Hub, "nvidia/Nemotron-H-8B", and not clearly a path: two words with one
/// slash.
bool looks_like_hub_name(const std::string& text);

/// `named`, or, where nothing of that name exists in the file system and the text is a name of the Hub, the
/// snapshot of it in the Hub's local cache, if there is one: <cache>/models--ORG--NAME/snapshots/REVISION
/// with the revision in refs/main, else the only snapshot. Nothing is downloaded. Throws Error where
/// refs/main names no snapshot, and where there are several snapshots and no refs/main.
/// Source: huggingface_hub, "Understand caching".
std::filesystem::path path_or_cached(const std::filesystem::path& named, HubKind kind);

/// The cache: HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE, else HF_HOME/hub, else
/// XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. In each, "~" and "~USER" in front are home
/// directories, and $NAME and ${NAME} are values of variables that are set, as in Python's os.path.expanduser
/// and os.path.expandvars. Source: huggingface_hub 2.4, constants.py.
std::filesystem::path hub_cache();

/// ", nor in the local cache of the Hub (FOLDER)" for a name of the Hub, where FOLDER is the folder in which
/// path_or_cached() looks; else "".
std::string not_in_cache(const std::filesystem::path& named, HubKind kind);

}  // namespace nemocube
