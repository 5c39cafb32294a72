#include <nvtx3/nvToolsExt.h>

#include "timeline/recorder.h"

/// Ranges of the NVIDIA Tools Extension, for the timeline. A program's NVTX loads the library that NVTX_INJECTION64_PATH names and
/// calls the function below (nvtx3/nvtxDetail/nvtxTypes.h).
namespace {

int push(const char* name) {
  emulator::timeline::push_range(name);
  return 0;
}
int push_with_attributes(const nvtxEventAttributes_t* attributes) {
  const bool named = attributes && attributes->messageType == NVTX_MESSAGE_TYPE_ASCII;
  emulator::timeline::push_range(named ? attributes->message.ascii : "");
  return 0;
}
int pop() {
  emulator::timeline::pop_range();
  return 0;
}

template <class Function>
NvtxFunctionPointer pointer_to(Function* function) {
  return reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
  if (size <= NVTX_CBID_CORE_RangePushA || size <= NVTX_CBID_CORE_RangePop) return 0;
  *table[NVTX_CBID_CORE_RangePushEx] = pointer_to(push_with_attributes);
  *table[NVTX_CBID_CORE_RangePushA] = pointer_to(push);
  *table[NVTX_CBID_CORE_RangePop] = pointer_to(pop);
  return 1;
}
