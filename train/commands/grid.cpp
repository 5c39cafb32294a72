#include <algorithm>
#include <charconv>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "parallel/grid/hypercube_grid.h"
#include "train/commands/commands.h"

namespace nemocube {
namespace {

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find(at, begin)) != std::string::npos; begin = end + 1)
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  return parts;
}

}  // namespace

std::vector<GridDimension> parse_dimensions(const std::string& text) {
  std::vector<GridDimension> dimensions;
  for (const std::string& part : split(text, ',')) {
    const auto equals = part.find('=');
    require(equals != std::string::npos, "grid: want NAME=SIZE,NAME=SIZE,..., found '", part, "' in '", text,
            "'");
    GridDimension d{part.substr(0, equals), 0};
    const char *begin = part.data() + equals + 1, *end = part.data() + part.size();
    const auto [stop, error] = std::from_chars(begin, end, d.size);
    require(error == std::errc() && stop == end, "grid: want an integer as size of dimension '", d.name,
            "', found '", part.substr(equals + 1), "'");
    dimensions.push_back(std::move(d));
  }
  return dimensions;
}

namespace {

struct GridArguments {
  std::string dimensions;
  std::int64_t offset = 0;
  std::optional<std::int64_t> world;
  std::vector<std::string> views, shared, groups;
  bool json = false;
};

HypercubeGrid make_grid(const GridArguments& o) {
  const auto dimensions = parse_dimensions(o.dimensions);
  // Without --world the world is what the grid needs; the grid itself refuses a product that overflows.
  const std::int64_t most = std::numeric_limits<int>::max();
  std::int64_t size = 1;
  for (const GridDimension& d : dimensions) size = d.size < 1 || size > most / d.size ? most : size * d.size;
  HypercubeGrid grid(dimensions, o.offset,
                     o.world.value_or(std::min(most, std::max<std::int64_t>(o.offset, 0) + size)));
  require(o.shared.empty() || o.shared.size() == o.views.size(), "grid: ", o.views.size(), " --view and ",
          o.shared.size(), " --shared; want none, or one --shared for each --view in the same order");
  for (std::size_t i = 0; i < o.views.size(); ++i) {
    const auto colon = o.views[i].find(':');
    require(colon != std::string::npos, "grid: --view: want NAME:DIMENSION=SIZE,..., found '", o.views[i],
            "'");
    grid.add_view(o.views[i].substr(0, colon), parse_dimensions(o.views[i].substr(colon + 1)),
                  o.shared.empty() ? std::vector<std::string>{} : split(o.shared[i], ','));
  }
  return grid;
}

struct Request {
  std::string text;  ///< as given: "dp", "tp,pp", "expert:ep"
  RankGroups groups;
};

std::vector<Request> requests(const GridArguments& o, const HypercubeGrid& grid) {
  std::vector<Request> all;
  if (o.groups.empty())
    for (const GridDimension& d : grid.dimensions()) all.push_back({d.name, grid.groups({d.name})});
  for (const std::string& text : o.groups) {
    const auto colon = text.find(':');
    const std::string view = colon == std::string::npos ? HypercubeGrid::base : text.substr(0, colon);
    const std::string subset = colon == std::string::npos ? text : text.substr(colon + 1);
    all.push_back({text, grid.groups(split(subset, ','), view)});
  }
  return all;
}

/// More would be tens of MB of text, or, with the largest grids, more than any disk holds.
constexpr std::int64_t most_listed_ranks = std::int64_t{1} << 22;

std::int64_t listed_ranks(const std::vector<Request>& requests) {
  std::int64_t sum = 0;
  for (const Request& r : requests) sum += r.groups.count() * r.groups.size();
  return sum;
}

void print_json(const std::vector<Request>& requests) {
  require(listed_ranks(requests) <= most_listed_ranks, "grid: --json lists every rank, here ",
          listed_ranks(requests), "; want at most ", most_listed_ranks,
          ", with fewer --groups or a smaller grid. Without --json large groups are summarised");
  std::cout << "{\"groups\": {";
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const RankGroups& groups = requests[i].groups;
    std::cout << (i == 0 ? "" : ", ") << nlohmann::json(requests[i].text).dump() << ": [";
    for (std::int64_t g = 0; g < groups.count(); ++g) {
      std::cout << (g == 0 ? "[" : ", [");
      for (std::int64_t k = 0; k < groups.size(); ++k) std::cout << (k == 0 ? "" : ", ") << groups.rank(g, k);
      std::cout << ']';
    }
    std::cout << ']';
  }
  std::cout << "}}\n";
}

/// The first `most` ranks of a group, and its last one.
void print_ranks(const RankGroups& groups, std::int64_t group, std::int64_t most) {
  std::cout << "  [";
  for (std::int64_t k = 0; k < std::min(groups.size(), most); ++k)
    std::cout << (k == 0 ? "" : ", ") << groups.rank(group, k);
  if (groups.size() > most) std::cout << ", ..., " << groups.rank(group, groups.size() - 1);
  std::cout << "]\n";
}

/// Groups of many ranks are summarised: the first ones and the last one.
void print_text(const HypercubeGrid& grid, const std::vector<Request>& requests) {
  constexpr std::int64_t most = 8;
  const bool all = listed_ranks(requests) <= most_listed_ranks;
  std::cout << "grid " << to_string(grid.dimensions()) << ": ranks " << grid.offset() << " to "
            << grid.offset() + grid.size() - 1 << '\n';
  for (const auto& [text, groups] : requests) {
    std::cout << text << ": " << groups.count() << (groups.count() == 1 ? " group of " : " groups of ")
              << groups.size() << '\n';
    const std::int64_t shown = all ? groups.count() : std::min(groups.count(), most);
    for (std::int64_t g = 0; g < shown; ++g) print_ranks(groups, g, all ? groups.size() : most);
    if (shown == groups.count()) continue;
    std::cout << "  ...\n";
    print_ranks(groups, groups.count() - 1, most);
  }
}

/// Recipes have no dimension `ep`: experts take ranks that dp and cp have, too.
void note_expert_parallel(const HypercubeGrid& grid) {
  for (const GridDimension& d : grid.dimensions())
    if (d.name == "ep" || d.name == "expt_dp" || d.name == "expt_tp")
      log_info(
          "grid: ", d.name,
          " is a dimension of ranks of its own here. In a recipe, expert parallelism is a view of the ranks "
          "that the other dimensions have: tp=2,cp=1,dp=4 --view expert:expt_tp=1,ep=4,expt_dp=2 --groups "
          "expert:ep");
}

void run(const GridArguments& o) {
  const HypercubeGrid grid = make_grid(o);
  note_expert_parallel(grid);
  const auto all = requests(o, grid);
  if (o.json)
    print_json(all);
  else
    print_text(grid, all);
}

}  // namespace

void add_grid_command(Command& app) {
  auto o = std::make_shared<GridArguments>();
  Command* command =
      app.add_subcommand("grid", "Rank lists of a process grid and its views; starts no ranks");
  command
      ->add_option("dimensions", o->dimensions,
                   "tp=2,cp=1,dp=4,pp=2: names and sizes, the first varies fastest")
      ->required();
  command->add_option("--offset", o->offset, "rank at which the grid begins")->capture_default_str();
  command->add_option("--world", o->world, "ranks of the whole job; default: offset + size of the grid");
  command
      ->add_option("--view", o->views,
                   "NAME:DIMENSION=SIZE,...: a second factorisation of the same ranks; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option(
          "--shared", o->shared,
          "dimensions that the view has in common with the grid; one for each --view, in their order")
      ->allow_extra_args(false);
  command
      ->add_option("--groups", o->groups,
                   "dimensions whose groups are printed: dp, or tp,pp, or VIEW:ep; may be repeated; "
                   "default: each single dimension")
      ->allow_extra_args(false);
  command->add_flag("--json", o->json, "one object {\"groups\": {\"tp,pp\": [[0, 1], ...]}}");
  command->callback([o] { run(*o); });
}

}  // namespace nemocube
