#pragma once

namespace nemocube {

/// Whether this library was compiled under AddressSanitizer, which keeps freed memory and
/// needs terabytes of address space. Test files ask this function, because they are compiled
/// without sanitizers in builds of either kind.
bool has_address_sanitizer();

}  // namespace nemocube
