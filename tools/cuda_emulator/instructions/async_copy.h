#pragma once
#include "instructions/form.h"
#include "machine/lanes.h"

namespace emulator {

class Warp;

/// Performs all copies (cp.async) of the lanes that have not landed yet (AsyncCopies::land).
void land_copies(Warp& warp, LaneMask lanes);

/// cp.async.bulk (PTX ISA 9.7.9.25.5), of which decode_cp has taken "async" and "bulk".
Execute decode_bulk_copy(Form& form);

}  // namespace emulator
