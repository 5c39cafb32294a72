#include "model/side_boundary.h"

#include <algorithm>

#include "core/error.h"

namespace nemocube {

std::vector<Shape> SideBoundary::shapes(std::int64_t stream, std::int64_t all) const {
  std::vector<Shape> shapes{{stream, hidden_size}};
  for (const Passed& passed : rows) shapes.push_back({passed.all_rows ? all : stream, passed.width});
  return shapes;
}

std::int64_t SideBoundary::numel(std::int64_t stream, std::int64_t all) const {
  std::int64_t sum = 0;
  for (const Shape& shape : shapes(stream, all)) sum += shape.numel();
  return sum;
}

std::int64_t SideBoundary::stream_rows(std::int64_t elements, std::int64_t all) const {
  const std::int64_t others = numel(0, all), one = numel(1, all) - others;
  expect(elements >= others && (elements - others) % one == 0, elements,
         " numbers at a cut, whose rows have ", one, " beside ", others);
  return (elements - others) / one;
}

SideBoundary side_boundary(const ModelSetup& setup, const std::function<Shard(const TensorSpec&)>& shard,
                           std::int64_t block) {
  SideBoundary boundary{setup.config.hidden_size, {}};
  const std::vector<SideRows> across = setup.config.side_rows_across(block);
  if (across.empty()) return boundary;
  const std::vector<TensorSpec> specs = tensor_specs(setup);
  for (const SideRows& rows : across) {
    std::int64_t width = rows.width;
    if (rows.all_rows() && shard) {
      const auto spec = std::ranges::find(specs, rows.cut_with, &TensorSpec::id);
      expect(spec != specs.end(), "side rows cut with a tensor that the model lacks");
      width = shard(*spec).shape()[0];
    }
    boundary.rows.push_back({rows.name, width, rows.all_rows()});
  }
  return boundary;
}

}  // namespace nemocube
