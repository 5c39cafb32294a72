#include "model/blocks/mixer.h"

namespace nemocube {

std::unique_ptr<MixerState> Mixer::make_state(std::int64_t) const { return nullptr; }
std::unique_ptr<MixerRecord> Mixer::make_record() const { return nullptr; }

}  // namespace nemocube
