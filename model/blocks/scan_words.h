#pragma once

namespace nemocube {

/// How messages call the blocks of a scan, its heads, and what several heads share.
struct ScanWords {
  const char *blocks, *heads, *groups;
};

}  // namespace nemocube
