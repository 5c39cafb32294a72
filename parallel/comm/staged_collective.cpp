#include "parallel/comm/staged_collective.h"

#include "core/cuda/streams.h"
#include "core/host_wait.h"

namespace nemocube {
namespace {

/// Memory of the host like `t`, or `t` itself where it is there. It is pinned for CUDA, so that the device
/// copies into it.
Tensor room_for(const Tensor& t) {
  if (!t.defined() || t.device().is_host()) return t;
  if (!t.device().is_cuda()) return Tensor::empty(t.shape(), t.dtype(), Device::cpu);  // MPI messages
  const auto memory = std::make_shared<cuda::Staging>(t.bytes());
  return Tensor::borrow(memory->data(), t.shape(), t.dtype(), memory);
}

Tensor copy_of(const Tensor& t) {
  const Tensor copy = room_for(t);
  if (copy.defined() && !copy.same_storage(t)) copy.copy_from(t);
  return copy;
}

void copy_back(const Tensor& to, const Tensor& from) {
  if (to.defined() && !to.same_storage(from)) to.copy_from(from);
}

}  // namespace

StagedCollective::StagedCollective(const Collective& call, int rank) : call_(call), on_host_(call) {
  const HostWaitName name("staged message");
  const bool in_place = call.operation == Operation::all_reduce || call.operation == Operation::broadcast;
  const bool contributes = call.operation != Operation::broadcast || call.root == rank;
  on_host_.in = contributes ? copy_of(call.in) : room_for(call.in);
  on_host_.out = in_place ? on_host_.in : room_for(call.out);
  for (Send& send : on_host_.sends) send.tensor = copy_of(send.tensor);
  for (Receive& receive : on_host_.receives) receive.tensor = room_for(receive.tensor);
}

void StagedCollective::bring_back() const {
  copy_back(call_.out, on_host_.out);
  for (std::size_t i = 0; i < call_.receives.size(); ++i)
    copy_back(call_.receives[i].tensor, on_host_.receives[i].tensor);
}

}  // namespace nemocube
