#include "blas/stub.h"

/// The profiling names (pncclX is ncclX), and the functions of libnccl that the emulator does not have.
#define EMULATOR_ALIAS(name) \
  asm(".globl p" #name "\n.type p" #name ", @function\np" #name ": jmp " #name "@PLT");

// clang-format off
EMULATOR_ALIAS(ncclAllGather) EMULATOR_ALIAS(ncclAllReduce) EMULATOR_ALIAS(ncclAlltoAll) EMULATOR_ALIAS(ncclBcast)
EMULATOR_ALIAS(ncclBroadcast) EMULATOR_ALIAS(ncclCommAbort) EMULATOR_ALIAS(ncclCommCount)
EMULATOR_ALIAS(ncclCommCuDevice) EMULATOR_ALIAS(ncclCommDeregister) EMULATOR_ALIAS(ncclCommDestroy)
EMULATOR_ALIAS(ncclCommFinalize) EMULATOR_ALIAS(ncclCommGetAsyncError) EMULATOR_ALIAS(ncclCommInitAll)
EMULATOR_ALIAS(ncclCommInitRank) EMULATOR_ALIAS(ncclCommInitRankConfig) EMULATOR_ALIAS(ncclCommInitRankScalable)
EMULATOR_ALIAS(ncclCommRegister) EMULATOR_ALIAS(ncclCommSplit) EMULATOR_ALIAS(ncclCommUserRank)
EMULATOR_ALIAS(ncclCommWindowDeregister) EMULATOR_ALIAS(ncclCommWindowRegister) EMULATOR_ALIAS(ncclGather)
EMULATOR_ALIAS(ncclGetErrorString) EMULATOR_ALIAS(ncclGetLastError) EMULATOR_ALIAS(ncclGetUniqueId)
EMULATOR_ALIAS(ncclGetVersion) EMULATOR_ALIAS(ncclGroupEnd) EMULATOR_ALIAS(ncclGroupStart)
EMULATOR_ALIAS(ncclMemAlloc) EMULATOR_ALIAS(ncclMemFree) EMULATOR_ALIAS(ncclRecv)
EMULATOR_ALIAS(ncclRedOpCreatePreMulSum) EMULATOR_ALIAS(ncclRedOpDestroy) EMULATOR_ALIAS(ncclReduce)
EMULATOR_ALIAS(ncclReduceScatter) EMULATOR_ALIAS(ncclScatter) EMULATOR_ALIAS(ncclSend)

extern "C" {
EMULATOR_STUB(ncclCommRevoke) EMULATOR_STUB(ncclCommShrink) EMULATOR_STUB(ncclDevCommCreate)
EMULATOR_STUB(ncclDevCommDestroy) EMULATOR_STUB(ncclGinBarrierCreateRequirement) EMULATOR_STUB(ncclGroupSimulateEnd)
EMULATOR_STUB(ncclLLA2ACalcSlots) EMULATOR_STUB(ncclLLA2ACreateRequirement)
EMULATOR_STUB(ncclLsaBarrierCreateRequirement) EMULATOR_STUB(ncclResetDebugInit)
EMULATOR_STUB(ncclResetDebugInitInternal) EMULATOR_STUB(ncclTeamLsa) EMULATOR_STUB(ncclTeamRail)
EMULATOR_STUB(ncclTeamRankToLsa) EMULATOR_STUB(ncclTeamRankToWorld) EMULATOR_STUB(ncclTeamWorld)
EMULATOR_STUB(pncclCommRevoke) EMULATOR_STUB(pncclCommShrink) EMULATOR_STUB(pncclDevCommCreate)
EMULATOR_STUB(pncclDevCommDestroy) EMULATOR_STUB(pncclGinBarrierCreateRequirement)
EMULATOR_STUB(pncclGroupSimulateEnd) EMULATOR_STUB(pncclLLA2ACalcSlots) EMULATOR_STUB(pncclLLA2ACreateRequirement)
EMULATOR_STUB(pncclLsaBarrierCreateRequirement) EMULATOR_STUB(pncclResetDebugInit) EMULATOR_STUB(pncclTeamLsa)
EMULATOR_STUB(pncclTeamRail) EMULATOR_STUB(pncclTeamRankToLsa) EMULATOR_STUB(pncclTeamRankToWorld)
EMULATOR_STUB(pncclTeamWorld)
}
// clang-format on
