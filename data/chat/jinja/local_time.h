#pragma once
#include <string>

#include "data/text/moment.h"

namespace nemocube::jinja {

/// Python's datetime.strftime of a moment, in its zone, with English names. Throws Failure for formats of
/// more than 1000 bytes.
std::string local_time(const std::string& format, const Moment& moment);

}  // namespace nemocube::jinja
