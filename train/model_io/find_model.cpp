#include "train/model_io/find_model.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "core/error.h"
#include "data/files/link.h"
#include "data/hf/hub_cache.h"
#include "data/peft/peft_config.h"
#include "train/model_io/base_model.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

fs::path without_link(const fs::path& path) {
  const fs::path target = linked_name(path);
  return target.empty() ? path : path.parent_path() / target;
}

bool holds(const fs::path& named, const char* file) {
  std::error_code none;
  return std::ranges::any_of(std::array{named, named / "model", through_links(named / "LATEST") / "model"},
                             [&](const fs::path& dir) { return fs::exists(dir / file, none); });
}

fs::path find(fs::path named, const std::string& file, const std::string& what) {
  std::error_code none;
  const std::string a_what = cat(what == "adapter" ? "an " : "a ", what);
  if (!named.has_filename()) named = named.parent_path();  // DIR/
  named = path_or_cached(named, HubKind::model);
  const bool there = fs::exists(named, none);
  require(there || !none, named.string(), ": cannot be opened: ", none.message());
  require(
      there, named.string(), ": does not exist", not_in_cache(named, HubKind::model), "; want ", a_what,
      " on this machine: a Hugging Face directory, a name of the Hub in its local cache, a checkpoint or the "
      "directory of a run (nothing is downloaded)");
  require(fs::is_directory(named, none), named.string(), ": is a file; want the directory of ", a_what);
  if (fs::exists(named / file, none)) return named;
  for (const fs::path& checkpoint : {named, named / "LATEST"})
    if (fs::exists(through_links(checkpoint) / "model" / file, none))
      return without_link(checkpoint) / "model";
  fail(named.string(), ": holds no ", what, ": there is neither ", file, " nor model/", file,
       " (as in a checkpoint) nor LATEST/model/", file, " (as in the directory of a run)");
}

}  // namespace

fs::path find_model(const fs::path& named) { return find(named, "config.json", "model"); }

fs::path find_adapter(const fs::path& named) { return find(named, peft_config_name, "adapter"); }

std::optional<fs::path> base_of_adapter(const fs::path& adapter) {
  std::error_code none;
  if (const auto record = read_base_record(adapter); record && fs::exists(record->path / "config.json", none))
    return record->path;
  return read_peft_config(adapter).base_model_name_or_path;
}

const fs::path& ModelAndAdapter::generation_folder() const {
  return !adapter.empty() && holds(adapter, "generation_config.json") ? adapter : model;
}

ModelAndAdapter find_model_and_adapter(const fs::path& named, const fs::path& adapter) {
  const fs::path place = path_or_cached(named, HubKind::model);
  if (!holds(place, peft_config_name) || holds(place, "config.json"))
    return {find_model(named), adapter.empty() ? fs::path() : find_adapter(adapter)};
  const fs::path own = find_adapter(named);
  require(adapter.empty(), named.string(), " is an adapter; want a model where another adapter is named, ",
          adapter.string());
  const std::optional<fs::path> base = base_of_adapter(own);
  require(base.has_value(), (own / peft_config_name).string(),
          ": base_model_name_or_path is null; name the model and give the directory as the adapter");
  try {
    return {find_model(*base), own};
  } catch (const Error& error) {
    fail((own / peft_config_name).string(), ": base_model_name_or_path: ", error.what(),
         "; or name the model and give the directory as the adapter");
  }
}

fs::path find_tokenizer(const fs::path& named) {
  std::error_code none;
  const fs::path path = through_links(named);
  const bool is_other = fs::exists(path, none) && !fs::is_directory(path, none);  // a file
  return is_other ? path : find(named, "tokenizer.json", "tokenizer");
}

}  // namespace nemocube
