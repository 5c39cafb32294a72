#include "instructions/special_registers.h"

#include <chrono>

#include "machine/block.h"
#include "machine/launch.h"

namespace emulator {
namespace {

/// A block's shared memory, without the gaps that only the emulator has.
std::uint64_t shared_bytes_of_device(const Block& block) {
  return block.shared_bytes() - block.launch().kernel().shared_gap_bytes;
}

using ptx::Type;

const ptx::Dim3& block_shape(Warp& w) { return w.block().launch().shape().block; }
const ptx::Dim3& grid_shape(Warp& w) { return w.block().launch().shape().grid; }
std::uint32_t thread(Warp& w, std::uint32_t lane) { return w.thread(static_cast<int>(lane)); }

/// Clocks count nanoseconds of the host: all that matters is that they advance.
std::uint64_t ticks() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

constexpr SpecialRegister table[] = {
    {"%tid.x", Type::u32, false,
     [](Warp& w, std::uint32_t l) -> std::uint64_t { return thread(w, l) % block_shape(w).x; }},
    {"%tid.y", Type::u32, false,
     [](Warp& w, std::uint32_t l) -> std::uint64_t {
       return thread(w, l) / block_shape(w).x % block_shape(w).y;
     }},
    {"%tid.z", Type::u32, false,
     [](Warp& w, std::uint32_t l) -> std::uint64_t {
       return thread(w, l) / block_shape(w).x / block_shape(w).y;
     }},
    {"%ntid.x", Type::u32, true, [](Warp& w, std::uint32_t) -> std::uint64_t { return block_shape(w).x; }},
    {"%ntid.y", Type::u32, true, [](Warp& w, std::uint32_t) -> std::uint64_t { return block_shape(w).y; }},
    {"%ntid.z", Type::u32, true, [](Warp& w, std::uint32_t) -> std::uint64_t { return block_shape(w).z; }},
    {"%ctaid.x", Type::u32, true,
     [](Warp& w, std::uint32_t) -> std::uint64_t { return w.block().position().x; }},
    {"%ctaid.y", Type::u32, true,
     [](Warp& w, std::uint32_t) -> std::uint64_t { return w.block().position().y; }},
    {"%ctaid.z", Type::u32, true,
     [](Warp& w, std::uint32_t) -> std::uint64_t { return w.block().position().z; }},
    {"%nctaid.x", Type::u32, true, [](Warp& w, std::uint32_t) -> std::uint64_t { return grid_shape(w).x; }},
    {"%nctaid.y", Type::u32, true, [](Warp& w, std::uint32_t) -> std::uint64_t { return grid_shape(w).y; }},
    {"%nctaid.z", Type::u32, true, [](Warp& w, std::uint32_t) -> std::uint64_t { return grid_shape(w).z; }},
    {"%laneid", Type::u32, false, [](Warp&, std::uint32_t l) -> std::uint64_t { return l; }},
    {"%warpid", Type::u32, true, [](Warp& w, std::uint32_t) -> std::uint64_t { return w.index(); }},
    {"%nwarpid", Type::u32, true, [](Warp&, std::uint32_t) -> std::uint64_t { return 64; }},
    {"%smid", Type::u32, true,
     [](Warp& w, std::uint32_t) -> std::uint64_t { return w.block().index() % 132; }},
    {"%nsmid", Type::u32, true, [](Warp&, std::uint32_t) -> std::uint64_t { return 132; }},
    {"%gridid", Type::u64, true,
     [](Warp& w, std::uint32_t) -> std::uint64_t { return w.block().launch().operation(); }},
    {"%lanemask_eq", Type::u32, false, [](Warp&, std::uint32_t l) -> std::uint64_t { return 1u << l; }},
    {"%lanemask_lt", Type::u32, false, [](Warp&, std::uint32_t l) -> std::uint64_t { return (1u << l) - 1; }},
    {"%lanemask_le", Type::u32, false, [](Warp&, std::uint32_t l) -> std::uint64_t { return (2u << l) - 1; }},
    {"%lanemask_gt", Type::u32, false,
     [](Warp&, std::uint32_t l) -> std::uint64_t { return ~((2u << l) - 1); }},
    {"%lanemask_ge", Type::u32, false,
     [](Warp&, std::uint32_t l) -> std::uint64_t { return ~((1u << l) - 1); }},
    {"%clock", Type::u32, true, [](Warp&, std::uint32_t) -> std::uint64_t { return ticks(); }},
    {"%clock_hi", Type::u32, true, [](Warp&, std::uint32_t) -> std::uint64_t { return ticks() >> 32; }},
    {"%clock64", Type::u64, true, [](Warp&, std::uint32_t) -> std::uint64_t { return ticks(); }},
    {"%globaltimer", Type::u64, true, [](Warp&, std::uint32_t) -> std::uint64_t { return ticks(); }},
    {"%globaltimer_lo", Type::u32, true, [](Warp&, std::uint32_t) -> std::uint64_t { return ticks(); }},
    {"%globaltimer_hi", Type::u32, true, [](Warp&, std::uint32_t) -> std::uint64_t { return ticks() >> 32; }},
    {"%dynamic_smem_size", Type::u32, true,
     [](Warp& w, std::uint32_t) -> std::uint64_t { return w.block().launch().shape().dynamic_shared; }},
    {"%total_smem_size", Type::u32, true,
     [](Warp& w,
        std::uint32_t) -> std::uint64_t { return shared_bytes_of_device(w.block()) - reserved_shared; }},
    {"%aggr_smem_size", Type::u32, true,
     [](Warp& w, std::uint32_t) -> std::uint64_t { return shared_bytes_of_device(w.block()); }},
    // A grid without clusters: every block is a cluster of its own.
    {"%cluster_ctarank", Type::u32, true, [](Warp&, std::uint32_t) -> std::uint64_t { return 0; }},
    {"%cluster_nctarank", Type::u32, true, [](Warp&, std::uint32_t) -> std::uint64_t { return 1; }},
    {"%cluster_ctaid.x", Type::u32, true, [](Warp&, std::uint32_t) -> std::uint64_t { return 0; }},
    {"%cluster_ctaid.y", Type::u32, true, [](Warp&, std::uint32_t) -> std::uint64_t { return 0; }},
    {"%cluster_ctaid.z", Type::u32, true, [](Warp&, std::uint32_t) -> std::uint64_t { return 0; }},
    {"%cluster_nctaid.x", Type::u32, true, [](Warp&, std::uint32_t) -> std::uint64_t { return 1; }},
    {"%cluster_nctaid.y", Type::u32, true, [](Warp&, std::uint32_t) -> std::uint64_t { return 1; }},
    {"%cluster_nctaid.z", Type::u32, true, [](Warp&, std::uint32_t) -> std::uint64_t { return 1; }},
    {"%clusterid.x", Type::u32, true,
     [](Warp& w, std::uint32_t) -> std::uint64_t { return w.block().position().x; }},
    {"%clusterid.y", Type::u32, true,
     [](Warp& w, std::uint32_t) -> std::uint64_t { return w.block().position().y; }},
    {"%clusterid.z", Type::u32, true,
     [](Warp& w, std::uint32_t) -> std::uint64_t { return w.block().position().z; }},
    {"%nclusterid.x", Type::u32, true,
     [](Warp& w, std::uint32_t) -> std::uint64_t { return grid_shape(w).x; }},
    {"%nclusterid.y", Type::u32, true,
     [](Warp& w, std::uint32_t) -> std::uint64_t { return grid_shape(w).y; }},
    {"%nclusterid.z", Type::u32, true,
     [](Warp& w, std::uint32_t) -> std::uint64_t { return grid_shape(w).z; }},
    // Address of the grid barrier of a cooperative launch (cooperative groups read both halves).
    {"%envreg1", Type::u32, true,
     [](Warp& w, std::uint32_t) -> std::uint64_t { return w.block().launch().grid_sync_word() >> 32; }},
    {"%envreg2", Type::u32, true,
     [](Warp& w, std::uint32_t) -> std::uint64_t { return w.block().launch().grid_sync_word(); }},
    {"%reserved_smem_offset_begin", Type::u32, true, [](Warp&, std::uint32_t) -> std::uint64_t { return 0; }},
    {"%reserved_smem_offset_end", Type::u32, true,
     [](Warp&, std::uint32_t) -> std::uint64_t { return reserved_shared; }},
    {"%reserved_smem_offset_cap", Type::u32, true,
     [](Warp&, std::uint32_t) -> std::uint64_t { return reserved_shared; }},
    {"%reserved_smem_offset_0", Type::u32, true, [](Warp&, std::uint32_t) -> std::uint64_t { return 0; }},
    {"%reserved_smem_offset_1", Type::u32, true, [](Warp&, std::uint32_t) -> std::uint64_t { return 0; }},
};

template <class T>
void fill(const SpecialRegister& r, Warp& warp, void* row, LaneMask lanes) {
  T* values = static_cast<T*>(row);
  if (r.uniform) {
    const T value = static_cast<T>(r.value(warp, 0));
    for_lanes(lanes, [&](int lane) { values[lane] = value; });
  } else {
    for_lanes(lanes, [&](int lane) {
      values[lane] = static_cast<T>(r.value(warp, static_cast<std::uint32_t>(lane)));
    });
  }
}

}  // namespace

void SpecialRegister::read(Warp& warp, void* row, LaneMask lanes) const {
  if (type == Type::u64)
    fill<std::uint64_t>(*this, warp, row, lanes);
  else
    fill<std::uint32_t>(*this, warp, row, lanes);
}

const SpecialRegister* find_special_register(std::string_view name) {
  for (const SpecialRegister& entry : table)
    if (entry.name == name) return &entry;
  return nullptr;
}

}  // namespace emulator
