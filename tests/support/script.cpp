#include "tests/support/script.h"

#include "data/json/test_dir.h"

namespace nemocube::testing {

namespace fs = std::filesystem;

void write_script(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  spit(file, "#!/bin/sh\n" + text);
  fs::permissions(file, fs::perms::owner_all);
}

}  // namespace nemocube::testing
