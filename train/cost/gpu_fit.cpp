#include "train/cost/gpu_fit.h"

#include <cmath>
#include <iomanip>
#include <sstream>

#include "core/error.h"
#include "core/memory_limit.h"
#include "ops/matmul/matmul.h"

namespace nemocube {

GpuFit fit_on(const GpuRates& gpu, std::int64_t tensors, std::int64_t nccl) {
  return {.memory = gpu.memory_bytes,
          .context = cuda_context_bytes + cuda::most_product_workspace,
          .nccl = nccl,
          .reserve = gpu.memory_bytes / 50,
          .needed = tensors};
}

std::string both_units(std::int64_t bytes) {
  const double gib = static_cast<double>(bytes) / static_cast<double>(std::int64_t{1} << 30);
  std::ostringstream text;
  text << bytes_text(bytes) << " (" << std::fixed << std::setprecision(gib < 9.995 ? 2 : 1) << gib << " GiB)";
  return std::move(text).str();
}

std::string to_string(const GpuFit& fit, const std::string& gpu) {
  const std::string sum =
      cat("its driver reports ", both_units(fit.memory), "; less CUDA's context and libraries ",
          both_units(fit.context), fit.nccl > 0 ? cat(", NCCL's buffers ", both_units(fit.nccl)) : "",
          " and a reserve of 2 % for gaps, scratch memory and estimates ", both_units(fit.reserve), ", ",
          both_units(fit.left()), " are left for tensors; a rank needs about ", both_units(fit.needed));
  if (fit.fits()) return cat("it fits on an ", gpu, ", with ", both_units(fit.spare()), " to spare: ", sum);
  if (fit.on_the_edge())
    return cat("it is on the edge on an ", gpu, ": ", both_units(-fit.spare()),
               " of the reserve are needed: ", sum);
  return cat("it does not fit on an ", gpu, ": ", both_units(-fit.spare() - fit.reserve),
             " are missing even without the reserve: ", sum);
}

}  // namespace nemocube
