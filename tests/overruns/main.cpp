// Makes the mistake happen that its argument names: overrun_core, overflow_core and so on, or inline.
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/overruns/overrun.h"

int main(int argc, char** argv) {
  using namespace nemocube::overruns;
  const std::string name = argc == 2 ? argv[1] : "";
  const std::vector<std::pair<std::string, int (*)(int)>> mistakes{
      {"overrun_core", overrun_core},         {"overflow_core", overflow_core},
      {"overrun_ops", overrun_ops},           {"overflow_ops", overflow_ops},
      {"overrun_model", overrun_model},       {"overflow_model", overflow_model},
      {"overrun_parallel", overrun_parallel}, {"overflow_parallel", overflow_parallel},
      {"overrun_data", overrun_data},         {"overflow_data", overflow_data},
      {"overrun_train", overrun_train},       {"overflow_train", overflow_train},
  };
  int sum = 0;
  for (const auto& [mistake, make] : mistakes)
    if (mistake == name) sum += make(argc - 1);
  const std::vector<int> values(3);
  if (name == "inline") sum += element(values.data(), argc + 1);
  std::cout << "not reported: '" << name << "' (" << sum << ")" << std::endl;
  return 0;
}
