#include "train/run/recipe_changes.h"

#include <algorithm>
#include <cstdint>

#include "core/log.h"
#include "core/quote.h"
#include "data/files/regular_file.h"
#include "train/recipe/differences.h"

namespace nemocube {
namespace {

constexpr std::int64_t most_bytes = std::int64_t{16} << 20;

void report(const std::string& key, const std::string& before, const std::string& now) {
  log_warning("the recipe has changed since this checkpoint: ", key, ": ", before, " -> ", now);
}

}  // namespace

void report_recipe_changes(const std::filesystem::path& checkpoint, const Recipe& recipe) {
  const std::filesystem::path file = checkpoint / "config.yaml";
  try {
    if (!std::filesystem::exists(file)) return;
    const std::string before = read_text_file(file, most_bytes);
    const auto shown = [](const std::string& text) { return text.empty() ? "absent" : excerpt(text); };
    // A value that variables stand for in one of the recipes is the same if either form is.
    const auto of_values = recipe_differences(before, describe(recipe));
    for (const auto& [key, old, now] : recipe_differences(before, describe_for_file(recipe)))
      if (key != "checkpoint.restore_from" && key != "checkpoint.checkpoint_dir" &&
          std::ranges::find(of_values, key, &KeyDifference::key) != of_values.end())
        report(key, shown(old), shown(now));
    for (const auto& [text, written] : recipe.interpolated) {
      const std::string note = interpolation_note(written);
      if (const auto at = before.find(note);
          at != before.npos && !before.substr(at + note.size()).starts_with(interpolation_digest(text)))
        report(excerpt(written), "another value", "that of now");
    }
  } catch (const std::exception& e) {
    log_warning("cannot say how the recipe differs from that of the checkpoint: ", e.what());
  }
}

}  // namespace nemocube
