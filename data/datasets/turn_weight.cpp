#include "data/datasets/turn_weight.h"

#include <array>
#include <nlohmann/json.hpp>

#include "core/quote.h"
#include "core/warn_once.h"

namespace nemocube {

namespace {

constexpr std::array<const char*, 3> honoured{"weight", "train", "loss_mask"};
/// Those of Axolotl, ms-swift, LLaMA-Factory, torchtune and prime-rl.
constexpr std::array<const char*, 7> without_effect{"training",    "train_detail", "trainable", "loss",
                                                    "loss_weight", "mask",         "masked"};

bool is_zero(const Json& value) { return value == false || value == 0; }
bool is_one(const Json& value) { return value == true || value == 1; }

}  // namespace

bool is_trained(const Json& message) {
  for (const char* key : honoured)
    if (const auto found = message.find(key); found != message.end() && is_zero(*found)) return false;
  return true;
}

void check_turn_weight(const JsonView& message, bool assistant) {
  for (const char* key : honoured) {
    const auto weight = message.find(key);
    if (!weight || is_zero(weight->value())) continue;
    if (assistant && !is_one(weight->value()))
      weight->refuse("0, 1, true or false, since a turn is a target or none");
    if (!assistant)
      warn_once(cat(message.file(), " asks for ", key), message.file(), ": '", weight->place(),
                "' asks for a target and has no effect, here and in other messages, since only turns of the "
                "assistant are targets");
  }
  for (const char* key : without_effect)
    if (const auto other = message.find(key))
      warn_once(cat(message.file(), " has ", key), message.file(), ": '", other->place(),
                "' has no effect, here and in other messages; the keys that say whether a turn is a target "
                "are weight, train and loss_mask");
}

}  // namespace nemocube
