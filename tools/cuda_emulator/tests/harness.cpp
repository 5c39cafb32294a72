#include "tests/harness.h"

#include <stdexcept>

#include "checks/order.h"
#include "machine/random.h"
#include "machine/report.h"

namespace emulator::test {

Buffer::Buffer(std::uint64_t bytes)
    : allocation_(AddressSpace::instance().allocate(AllocationKind::device, 0, bytes, "cudaMalloc")) {
  if (!allocation_) throw std::runtime_error("no device memory");
}

Buffer::~Buffer() { AddressSpace::instance().free(*allocation_); }

void Buffer::write(const void* data, std::uint64_t bytes, std::uint64_t offset) {
  AddressSpace& space = AddressSpace::instance();
  std::byte* host = space.translate(address() + offset, bytes).host;
  if (!host) throw std::runtime_error("write outside of the buffer");
  std::memcpy(host, data, bytes);
  space.mark_initialised(address() + offset, bytes);
}

void Buffer::read(void* data, std::uint64_t bytes, std::uint64_t offset) const {
  const std::byte* host = AddressSpace::instance().translate(address() + offset, bytes).host;
  if (!host) throw std::runtime_error("read outside of the buffer");
  std::memcpy(data, host, bytes);
}

int run(Module& module, const LaunchShape& shape, const Arguments& arguments, const std::string& kernel,
        std::uint64_t seed) {
  const Kernel* found = module.kernel(kernel.empty() ? module.kernel_names().at(0) : kernel);
  if (!found) throw std::runtime_error("no kernel " + kernel);
  std::vector<std::byte> block = arguments.bytes();
  if (block.size() < found->parameter_bytes)
    throw std::runtime_error("too few arguments for " + found->readable);
  static Clock clock;
  const OperationId operation = OperationOrder::instance().add(1, clock, "test kernel");
  return Launch(*found, shape, std::move(block), 0, operation, seed).run();
}

std::string kernel_text(int parameters, const std::string& body, const std::string& declarations) {
  std::string text =
      ".version 9.0\n.target sm_90\n.address_size 64\n" + declarations + "\n.visible .entry k(";
  for (int p = 0; p < parameters; ++p) text += (p ? ", " : "") + (".param .u64 p" + std::to_string(p));
  text +=
      ")\n{\n.reg .b64 %rd<100>, %t64, %p<20>;\n.reg .b32 %r<100>, %t, %t_base;\n.reg .f32 %f<100>;\n"
      ".reg .f64 %fd<100>;\n.reg .b16 %h<100>;\n.reg .pred %q<20>;\n";
  for (int p = 0; p < parameters; ++p)
    text += "ld.param.u64 %p" + std::to_string(p) + ", [p" + std::to_string(p) + "];\ncvta.to.global.u64 %p" +
            std::to_string(p) + ", %p" + std::to_string(p) + ";\n";
  text +=
      "mov.u32 %t, %tid.x;\nmov.u32 %t_base, %ctaid.x;\n{ .reg .b32 n; mov.u32 n, %ntid.x; mad.lo.u32 %t, "
      "%t_base, n, %t; }\n"
      "cvt.u64.u32 %t64, %t;\n" +
      body + "\nret;\n}\n";
  return text;
}

std::vector<std::string> take_reports() { return take_report_kinds(); }

}  // namespace emulator::test
