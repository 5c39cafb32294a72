#pragma once
#include <cstdint>

#include "core/allocator.h"

/// What captures (graph.cu) tell the allocator of the device, and ask it.
namespace nemocube::cuda {

/// Memory that this thread takes from here on is that of the graph which is captured.
void begin_captured_memory();
/// The most of such memory that was held at once. std::logic_error that names its owner where some is still
/// held.
std::int64_t end_captured_memory();
/// A graph that holds so many bytes while it runs is launched.
void count_graph_memory(std::int64_t bytes);
/// Throws OutOfMemory. `what`: "a CUDA graph", which wants so many bytes.
[[noreturn]] void fail_for_want_of(const char* what, std::int64_t bytes);
/// Memory that no tensor holds goes back to the system, where captured work will take it.
void release_free_memory();
/// Blocks that a graph has kept.
void free_kept(const MemoryBlock& block);

}  // namespace nemocube::cuda
