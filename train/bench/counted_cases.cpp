#include "train/bench/counted_cases.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "train/bench/kernel_report.h"

namespace nemocube {

double CountedCase::size(const std::string& name) const {
  const auto found = std::ranges::find(shape, name, [](const auto& s) { return s.first; });
  require(found != shape.end(), "counted case ", op, ", ", variant, ": it has no size '", name, "'");
  return static_cast<double>(found->second);
}

const CountedCase& CountedCases::find(const std::string& op, const std::string& variant) const {
  const auto found =
      std::ranges::find_if(cases_, [&](const auto& c) { return c.op == op && c.variant == variant; });
  require(found != cases_.end(), "counted cases: there is none of ", op, ", ", variant);
  return *found;
}

CountedCase counted_case(const std::string& op, const BenchCase& work, const KernelCounters& counted) {
  CountedCase c{op, work.variant, work.shape, {}};
  for (const KernelCount& k : counted.kernels) {
    const ModelledTime time = modelled_time(k, Placement::even);
    c.kernels.push_back({short_kernel_name(k.name), time.seconds, modelled_time(k).seconds, time.bound});
  }
  return c;
}

void append_counted_case(const std::filesystem::path& file, const CountedCase& c) {
  nlohmann::ordered_json shape = nlohmann::ordered_json::array(), kernels = nlohmann::ordered_json::array();
  for (const auto& [name, size] : c.shape) shape.push_back({name, size});
  for (const CountedKernel& k : c.kernels)
    kernels.push_back(
        {{"name", k.name}, {"seconds", k.seconds}, {"placed_seconds", k.placed_seconds}, {"bound", k.bound}});
  const nlohmann::ordered_json line{
      {"op", c.op}, {"variant", c.variant}, {"shape", shape}, {"kernels", kernels}};
  std::ofstream out(file, std::ios::app);
  out << line.dump() << '\n';
  require(out.flush().good(), file.string(), ": cannot be written");
}

CountedCases read_counted_cases(const std::filesystem::path& file) {
  std::ifstream in(file);
  require(in.good(), file.string(), ": cannot be read");
  std::vector<CountedCase> cases;
  try {
    for (std::string line; std::getline(in, line);) {
      const auto json = nlohmann::json::parse(line);
      CountedCase c{json.at("op"), json.at("variant"), json.at("shape").get<BenchShape>(), {}};
      for (const auto& k : json.at("kernels"))
        c.kernels.push_back({k.at("name"), k.at("seconds"), k.at("placed_seconds"), k.at("bound")});
      cases.push_back(std::move(c));
    }
  } catch (const nlohmann::json::exception& error) {
    fail(file.string(), ": not counted cases of bench op: ", error.what());
  }
  return CountedCases(std::move(cases));
}

}  // namespace nemocube
