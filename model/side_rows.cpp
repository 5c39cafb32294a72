#include "model/side_rows.h"

#include "core/error.h"

namespace nemocube {

const Var& SideStream::get(const TensorName& name) const {
  const auto found = rows_.find(name);
  expect(found != rows_.end(), "rows '", name.member, "' of block ", name.block, " have not been made");
  return found->second;
}

}  // namespace nemocube
