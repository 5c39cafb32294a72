#pragma once
#include <array>

#include "train/recipe/recipe.h"

/// How recipes spell the choices. The first name of a value is the one that describe() writes; for the key
/// `_target_` a name is the last component of a dotted path, so `torch.optim.AdamW` is `AdamW`.
namespace nemocube::recipe {

template <class E>
struct Name {
  const char* name;
  E value;
};

// One list for each enumeration, found by type.
template <class E>
inline constexpr std::array<Name<E>, 0> names_of{};

template <>
inline constexpr std::array names_of<DeviceChoice>{
    Name{"cpu", DeviceChoice::cpu}, Name{"cuda", DeviceChoice::cuda}, Name{"auto", DeviceChoice::automatic}};
template <>
inline constexpr std::array names_of<Strictness>{
    Name{"raise_all", Strictness::raise_all}, Name{"raise_unexpected", Strictness::raise_unexpected},
    Name{"log_all", Strictness::log_all}, Name{"log_unexpected", Strictness::log_unexpected},
    Name{"ignore_all", Strictness::ignore_all}};
template <>
inline constexpr std::array names_of<ModelSource>{Name{"from_pretrained", ModelSource::pretrained},
                                                  Name{"from_config", ModelSource::config}};
template <>
inline constexpr std::array names_of<Initialisation>{Name{"hf", Initialisation::hf},
                                                     Name{"megatron", Initialisation::megatron}};
template <>
inline constexpr std::array names_of<DropoutPosition>{Name{"post", DropoutPosition::post},
                                                      Name{"pre", DropoutPosition::pre}};
template <>
inline constexpr std::array names_of<LoraInitialisation>{Name{"xavier", LoraInitialisation::xavier},
                                                         Name{"uniform", LoraInitialisation::kaiming},
                                                         Name{"kaiming", LoraInitialisation::kaiming}};
template <>
inline constexpr std::array names_of<Paradigm>{Name{"autoregressive", Paradigm::autoregressive},
                                               Name{"bidirectional", Paradigm::bidirectional},
                                               Name{"block_diff", Paradigm::block_diff}};
template <>
inline constexpr std::array names_of<DllmMode>{Name{"hybrid", DllmMode::hybrid}};
template <>
inline constexpr std::array names_of<LossKind>{
    Name{"MaskedCrossEntropy", LossKind::masked}, Name{"ChunkedCrossEntropy", LossKind::chunked},
    Name{"FusedLinearCrossEntropy", LossKind::fused_linear},
    Name{"TEParallelCrossEntropy", LossKind::masked}};  // distributed.tp_cross_entropy says what is parallel
template <>
inline constexpr std::array names_of<DatasetKind>{
    Name{"squad", DatasetKind::squad},
    Name{"make_squad_dataset", DatasetKind::squad},
    Name{"messages", DatasetKind::messages},
    Name{"ChatDataset", DatasetKind::messages},
    Name{"column_mapped", DatasetKind::column_mapped},
    Name{"ColumnMappedTextInstructionDataset", DatasetKind::column_mapped},
    Name{"hellaswag", DatasetKind::hellaswag},
    Name{"HellaSwag", DatasetKind::hellaswag},
    Name{"megatron", DatasetKind::megatron},
    Name{"MegatronPretraining", DatasetKind::megatron},
    Name{"mock", DatasetKind::mock},
    Name{"MockIterableDataset", DatasetKind::mock},
    Name{"mock_iterable_dataset", DatasetKind::mock},
    Name{"tokens", DatasetKind::tokens}};
template <>
inline constexpr std::array names_of<Padding>{Name{"do_not_pad", Padding::none}, Name{"false", Padding::none},
                                              Name{"longest", Padding::none}, Name{"true", Padding::none},
                                              Name{"max_length", Padding::max_length}};
enum class Cut { off, on };
template <>
inline constexpr std::array names_of<Cut>{Name{"false", Cut::off},     Name{"do_not_truncate", Cut::off},
                                          Name{"true", Cut::on},       Name{"longest_first", Cut::on},
                                          Name{"only_first", Cut::on}, Name{"only_second", Cut::on}};
template <>
inline constexpr std::array names_of<Truncation>{
    Name{"left", Truncation::left}, Name{"right", Truncation::right}, Name{"context", Truncation::context}};
template <>
inline constexpr std::array names_of<AnswerStart>{Name{"answer", AnswerStart::answer},
                                                  Name{"space", AnswerStart::space},
                                                  Name{"prompt", AnswerStart::prompt}};
template <>
inline constexpr std::array names_of<MegatronSplit>{Name{"train", MegatronSplit::train},
                                                    Name{"validation", MegatronSplit::validation},
                                                    Name{"test", MegatronSplit::test}};
template <>
inline constexpr std::array names_of<MaskOrder>{Name{"history_first", MaskOrder::history_first},
                                                Name{"reasoning_first", MaskOrder::reasoning_first}};
template <>
inline constexpr std::array names_of<ToolArguments>{Name{"as_given", ToolArguments::as_given},
                                                    Name{"text", ToolArguments::text}};
template <>
inline constexpr std::array names_of<Packing>{Name{"thd", Packing::thd}, Name{"neat", Packing::neat}};
template <>
inline constexpr std::array names_of<OptimizerKind>{
    Name{"AdamW", OptimizerKind::adamw}, Name{"Adam", OptimizerKind::adam}, Name{"SGD", OptimizerKind::sgd},
    Name{"FusedAdam",
         OptimizerKind::adamw}};  // Transformer Engine's: decoupled decay unless adam_w_mode is false
template <>
inline constexpr std::array names_of<DecayStyle>{
    Name{"constant", DecayStyle::constant}, Name{"linear", DecayStyle::linear},
    Name{"cosine", DecayStyle::cosine}, Name{"inverse-square-root", DecayStyle::inverse_square_root},
    Name{"WSD", DecayStyle::wsd}};
template <>
inline constexpr std::array names_of<WsdStyle>{
    Name{"linear", WsdStyle::linear}, Name{"cosine", WsdStyle::cosine},
    Name{"exponential", WsdStyle::exponential}, Name{"minus_sqrt", WsdStyle::minus_sqrt}};
template <>
inline constexpr std::array names_of<WeightDecayStyle>{Name{"constant", WeightDecayStyle::constant},
                                                       Name{"linear", WeightDecayStyle::linear},
                                                       Name{"cosine", WeightDecayStyle::cosine}};
template <>
inline constexpr std::array names_of<ScheduleUnit>{Name{"steps", ScheduleUnit::steps},
                                                   Name{"iterations", ScheduleUnit::steps},
                                                   Name{"samples", ScheduleUnit::samples}};
template <>
inline constexpr std::array names_of<Strategy>{Name{"fsdp2", Strategy::fsdp2},
                                               Name{"megatron_fsdp", Strategy::megatron_fsdp},
                                               Name{"ddp", Strategy::ddp}};
/// The strategies again, by the names of AutoModel's classes, also of older versions.
enum class StrategyClass { fsdp2, megatron_fsdp, ddp };
template <>
inline constexpr std::array names_of<StrategyClass>{Name{"FSDP2Config", StrategyClass::fsdp2},
                                                    Name{"FSDP2Manager", StrategyClass::fsdp2},
                                                    Name{"MegatronFSDPConfig", StrategyClass::megatron_fsdp},
                                                    Name{"MegatronFSDPManager", StrategyClass::megatron_fsdp},
                                                    Name{"NVFSDPManager", StrategyClass::megatron_fsdp},
                                                    Name{"DDPConfig", StrategyClass::ddp},
                                                    Name{"DDPManager", StrategyClass::ddp}};
template <>
inline constexpr std::array names_of<ZeroLevel>{Name{"3", ZeroLevel::parameters},
                                                Name{"2", ZeroLevel::gradients},
                                                Name{"1", ZeroLevel::optimizer},
                                                Name{"0", ZeroLevel::none},
                                                Name{"optim_grads_params", ZeroLevel::parameters},
                                                Name{"optim_grads", ZeroLevel::gradients},
                                                Name{"grads_params", ZeroLevel::gradients},
                                                Name{"optim", ZeroLevel::optimizer},
                                                Name{"no_shard", ZeroLevel::none}};
enum class Recomputation { off, on };
template <>
inline constexpr std::array names_of<Recomputation>{
    Name{"false", Recomputation::off}, Name{"true", Recomputation::on}, Name{"full", Recomputation::on},
    Name{"selective", Recomputation::on}};

template <>
inline constexpr std::array names_of<TpCrossEntropy>{
    Name{"auto", TpCrossEntropy::automatic}, Name{"native", TpCrossEntropy::native},
    Name{"fused", TpCrossEntropy::fused},    Name{"te", TpCrossEntropy::fused},
    Name{"off", TpCrossEntropy::off},        Name{"false", TpCrossEntropy::off}};  // YAML: off is false
template <>
inline constexpr std::array names_of<ContextAttention>{Name{"p2p", ContextAttention::ring},
                                                       Name{"all_gather", ContextAttention::all_gather}};
template <>
inline constexpr std::array names_of<DispatcherKind>{
    Name{"alltoall", DispatcherKind::alltoall}, Name{"allgather", DispatcherKind::allgather},
    Name{"local", DispatcherKind::local},       Name{"deepep", DispatcherKind::alltoall},
    Name{"hybridep", DispatcherKind::alltoall}, Name{"uccl_ep", DispatcherKind::alltoall},
    Name{"torch", DispatcherKind::allgather}};
template <>
inline constexpr std::array names_of<Round>{Name{"up", Round::up}, Name{"down", Round::down}};
template <>
inline constexpr std::array names_of<CommBackend>{
    Name{"nccl", CommBackend::nccl}, Name{"gloo", CommBackend::gloo}, Name{"mpi", CommBackend::mpi},
    Name{"cpu:gloo,cuda:nccl", CommBackend::gloo_and_nccl}};

template <class E>
const char* name_of_choice(E value) {
  for (const auto& [name, candidate] : names_of<E>)
    if (candidate == value) return name;
  return "";
}

}  // namespace nemocube::recipe
