#include "instructions/rounding.h"

#include "instructions/form.h"

namespace emulator {

std::optional<Rounding> take_rounding(Form& form) {
  const std::string_view name = form.take_one_of({"rn", "rz", "rm", "rp"});
  if (name == "rn") return Rounding::nearest;
  if (name == "rz") return Rounding::zero;
  if (name == "rm") return Rounding::down;
  if (name == "rp") return Rounding::up;
  return std::nullopt;
}

}  // namespace emulator
