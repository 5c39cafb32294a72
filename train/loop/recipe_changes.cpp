#include "train/loop/recipe_changes.h"

#include <fstream>
#include <sstream>

#include "core/log.h"
#include "core/quote.h"
#include "train/recipe/differences.h"

namespace nemocube {

void report_recipe_changes(const std::filesystem::path& checkpoint, const Recipe& recipe) {
  const std::filesystem::path file = checkpoint / "config.yaml";
  if (!std::filesystem::exists(file)) return;
  try {
    std::ostringstream before;
    before << std::ifstream(file, std::ios::binary).rdbuf();
    const auto shown = [](const std::string& text) { return text.empty() ? "absent" : excerpt(text); };
    for (const auto& [key, old, now] : recipe_differences(before.str(), describe(recipe)))
      if (key != "checkpoint.restore_from" && key != "checkpoint.checkpoint_dir")
        log_warning("the recipe has changed since this checkpoint: ", key, ": ", shown(old), " -> ",
                    shown(now));
  } catch (const Error& e) {
    log_warning("cannot say how the recipe differs from that of the checkpoint: ", e.what());
  }
}

}  // namespace nemocube
