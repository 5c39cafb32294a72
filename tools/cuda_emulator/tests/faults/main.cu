#include <cstring>
#include <vector>

#include "faults.h"

bool clean = false;

namespace {

std::vector<Program>& all() {
  static std::vector<Program> programs;
  return programs;
}

}  // namespace

Programs::Programs(std::initializer_list<Program> programs) {
  all().insert(all().end(), programs.begin(), programs.end());
}

int main(int argc, char** argv) {
  clean = argc > 2 && std::strcmp(argv[2], "clean") == 0;
  for (const Program& program : all())
    if (argc > 1 && std::strcmp(argv[1], program.name) == 0) {
      program.run();
      return 0;
    }
  std::printf("faults NAME [clean]\n");
  for (const Program& program : all()) std::printf("  %s\n", program.name);
  return 2;
}
