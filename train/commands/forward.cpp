#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>

#include "core/log.h"
#include "core/quote.h"
#include "data/json/atomic_file.h"
#include "data/safetensors/reader.h"
#include "data/safetensors/writer.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "train/assemble/from_recipe.h"
#include "train/commands/commands.h"
#include "train/device/device_of_rank.h"
#include "train/evaluate/held_weights.h"
#include "train/evaluate/log_probabilities.h"
#include "train/model_io/find_model.h"
#include "train/model_io/model_io.h"
#include "train/ranks/inputs.h"
#include "train/ranks/run_ranks.h"
#include "train/step/train_step.h"

namespace nemocube {
namespace {

struct ForwardArguments {
  std::filesystem::path model, adapter, input, output;
  std::string dtype = "f32", device;
  std::vector<std::string> overrides;
  bool grads = false, logprobs = false, share_device = false;
};

void check_ids(const std::string& name, const Tensor& ids, std::int64_t vocab_size, bool may_be_ignored) {
  const std::int64_t seq = ids.dim(1);
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    const std::int64_t id = ids.data<std::int64_t>()[i];
    if (may_be_ignored && id == ignored_label) continue;
    require(id >= 0 && id < vocab_size, name, ": row ", i / seq, ", position ", i % seq, ": id ", id,
            " is outside the vocabulary [0, ", vocab_size, ")",
            may_be_ignored ? cat(" and not ", ignored_label, " (no label)") : "");
  }
}

/// What --input holds: i64 [batch, seq], both above 0.
struct ForwardBatch {
  Tensor ids;
  std::optional<Tensor> labels;
};

/// Everything that can be said of the file without a model. A tensor that has no effect would give logits of
/// another input than the file says: patches of an image, a mask.
ForwardBatch read_batch(const ForwardArguments& options) {
  const SafetensorsFile file(options.input);
  const std::string name = options.input.string();
  for (const StoredTensor& tensor : file.tensors())
    require(tensor.name == "input_ids" || tensor.name == "labels", name, ": tensor ", quote(tensor.name),
            " (", describe(tensor), "): want input_ids and labels alone, other inputs have no effect");
  ForwardBatch batch{file.tensor("input_ids"), std::nullopt};
  check_dtype(name + ": input_ids", batch.ids, DType::i64);
  require(batch.ids.ndim() == 2, name, ": input_ids: want [batch, seq], got ", batch.ids.shape());
  require(batch.ids.numel() >= 1, name, ": input_ids: want at least one id, got ", batch.ids.shape());
  if (file.find("labels") != nullptr) {
    batch.labels = file.tensor("labels");
    check_dtype(name + ": labels", *batch.labels, DType::i64);
    check_shape(name + ": labels", *batch.labels, batch.ids.shape());
  }
  require(batch.labels || !options.grads, name, ": --grads needs a tensor 'labels'");
  require(batch.labels || !options.logprobs || batch.ids.dim(1) > 1, name,
          ": --logprobs: rows of one token have no next one; want a tensor 'labels', or longer rows");
  return batch;
}

double scalar(const Tensor& t) { return t.dtype() == DType::f64 ? t.item<double>() : t.item<float>(); }

/// The rows [first, first + count) of the batch that a rank computes; all ranks' rows in order are the batch.
struct Share {
  std::int64_t first, count;
};
Share share_of(std::int64_t rank, std::int64_t ranks, std::int64_t rows) {
  return {rows * rank / ranks, rows * (rank + 1) / ranks - rows * rank / ranks};
}

/// Rows of all ranks, in their order.
Tensor all_rows(const Tensor& own, Communicator& group, std::int64_t rows) {
  if (group.size() == 1) return own;  // which may be large
  std::vector<std::int64_t> counts;
  for (int r = 0; r < group.size(); ++r) counts.push_back(share_of(r, group.size(), rows).count * own.cols());
  const Tensor all = Tensor::empty({rows, own.cols()}, own.dtype(), own.device());
  group.all_gather_v(all, own, counts);
  return all;
}

/// The token that follows each one; none follows the last of a row.
Tensor next_tokens(const Tensor& ids) {
  const Tensor next = Tensor::empty(ids.shape(), DType::i64, Device::cpu);  // for the host
  for (std::int64_t r = 0; r < ids.dim(0); ++r) {
    const auto* row = ids.row<std::int64_t>(r);
    *std::copy(row + 1, row + ids.dim(1), next.row<std::int64_t>(r)) = ignored_label;
  }
  return next;
}

/// On every rank: logprobs [batch, seq] f32, with 0 where there is no label, and the mean loss.
std::vector<NamedTensor> label_log_probabilities(ParallelModel& parallel, const Tensor& ids,
                                                 const Tensor& labels) {
  const std::int64_t batch = ids.dim(0), seq = ids.dim(1);
  const Communicator& replicas = parallel.replicas();
  const Share share = share_of(replicas.rank(), replicas.size(), batch);
  const auto own_rows = [&](const Tensor& t) { return t.narrow(0, share.first, share.count).reshape({-1}); };
  const TokenBatch tokens(own_rows(ids), own_rows(labels), Sequences::uniform(share.count, seq));
  TokenPlaces places;
  for (std::int64_t token = 0; token < share.count * seq; ++token) {
    places.rows.push_back(share.first + token / seq);
    places.positions.push_back(token % seq);
  }
  parallel.data().spread_values();
  const HeldWeights held(parallel, DataParallel::Held::everything);
  const Tensor losses = Tensor::zeros({2}, DType::f64, parallel.model().device());
  Tensor token_losses;
  evaluate_loss(parallel, tokens, nullptr, losses, &token_losses);
  const auto found =
      all_log_probabilities(parallel, own_log_probabilities(parallel, tokens, places, token_losses));
  const Tensor values = Tensor::zeros({batch, seq}, DType::f32, Device::cpu);  // for the file
  for (const LabelLogProbability& p : found)
    values.row<float>(p.row)[p.position] = static_cast<float>(p.value);
  const std::int64_t count = Labels(labels).count();
  const double mean =
      parallel.sum(losses.to_vector().front()) / static_cast<double>(std::max<std::int64_t>(count, 1));
  log_info("loss ", mean, " over ", count, " labels");
  return {{"logprobs", values}, {"loss", Tensor::scalar(mean, DType::f32, Device::cpu)}};  // for the file
}

void write_results(const std::filesystem::path& output, const std::vector<NamedTensor>& results) {
  std::vector<TensorSource> sources;
  for (const NamedTensor& r : results) sources.push_back(source_of(r.name, r.value, DType::f32));
  write_safetensors(output, std::move(sources));
}

/// Ranks share the rows, and each has the whole model.
ParallelPlan whole_models(const World& world) {
  ParallelPlan plan;
  plan.grid.dp_shard = world.size();
  plan.data.level = ZeroLevel::none;
  return plan;
}

void run(const ForwardArguments& options, const Launch& launch) {
  const Device chosen = choose_device(options.device, model_operations());
  if (launch.rank == 0) check_output_place(options.output);
  const auto [ids, labels] = read_batch(options);
  std::optional<Recipe> layout;  // of log-probabilities
  ParallelSettings settings;
  if (options.logprobs) {
    for (const std::string& word : options.overrides)
      require(std::ranges::any_of(std::array{"distributed.", "dist_env.", "debug."},
                                  [&](const char* section) { return word.starts_with(section); }),
              "--set: want a key of distributed, dist_env or debug, got ", quote(word));
    layout = parse_recipe("", "forward", options.overrides, RecipeUse::ranks);
    settings = settle(*layout);
  }
  const auto [folder, adapter] = find_model_and_adapter(options.model, options.adapter);
  World world(launch, layout ? comm_options(*layout) : CommOptions());
  const Device device = device_of_rank(chosen, world, {.shared = options.share_device});
  Inputs inputs{"the command line",
                cat("--dtype: ", options.dtype, "\n--grads: ", options.grads ? "yes" : "no",
                    "\n--logprobs: ", layout ? cat("yes\n", describe(*layout)) : "no"),
                files_of_model(folder)};
  inputs.files.insert(options.input);
  if (!adapter.empty()) inputs.files.merge(files_of_model(adapter));
  want_same_inputs(world, inputs);
  const OpenedModel source(folder);
  const Finetuning finetuning = with_adapter(source, adapter);
  const Residence place = layout ? RunRanks(world, layout->distributed, settings, device)
                                       .place_for(setup_of(source, finetuning.choices))
                                 : Residence(device, world, whole_models(world));
  const LoadedModel loaded = load_model(source, parse_weight_dtype(options.dtype), place, finetuning);
  DataParallel& parallel = loaded.parallel->data();
  Stack& model = *loaded.model;
  const std::int64_t batch = ids.dim(0), seq = ids.dim(1);
  check_ids(options.input.string() + ": input_ids", ids, model.config().vocab_size, false);
  if (labels) check_ids(options.input.string() + ": labels", *labels, model.config().vocab_size, true);
  if (options.logprobs) {
    const auto results = label_log_probabilities(*loaded.parallel, ids, labels ? *labels : next_tokens(ids));
    if (launch.rank == 0) write_results(options.output, results);
    return;
  }
  const Share share = share_of(world.rank(), world.size(), batch);
  const auto own_rows = [&](const Tensor& t) { return t.narrow(0, share.first, share.count).reshape({-1}); };

  Tape tape;
  Context ctx;
  if (options.grads) ctx.tape = &tape;
  parallel.begin_step();
  const Sequences sequences = Sequences::uniform(share.count, seq);
  const Var hidden = model.hidden(ctx, own_rows(ids).to(model.device()), sequences);
  std::vector<NamedTensor> results;
  Tensor logits =
      model.logits(hidden.value()).to(DType::f32).reshape({share.count, seq * model.config().vocab_size});
  logits = all_rows(logits, parallel.group(), batch);
  results.push_back({"logits", logits.reshape({batch, seq, model.config().vocab_size})});
  if (labels) {
    const std::int64_t labels_given = Labels(*labels).count();
    const auto count = static_cast<double>(std::max<std::int64_t>(labels_given, 1));
    const Var loss =
        model.loss(ctx, hidden, Labels(own_rows(*labels)).to(model.device()), sequences, 1 / count);
    const double sum = parallel.group().host_all_reduce(scalar(loss.value()));
    results.push_back({"loss", Tensor::scalar(sum / count, DType::f32, Device::cpu)});  // for the file
    if (options.grads) {
      tape.backward(loss, Tensor::scalar(1, loss.value().dtype(), model.device()));
      parallel.finish_gradients();
      std::vector<NamedTensor> grads;
      for (const Parameter& p : model.parameters().all())
        if (p.node) grads.push_back({p.name, p.gradient().to(DType::f32)});
      for (NamedTensor& g : to_file_names(grads, loaded.files))
        results.push_back({"grad." + g.name, g.value});
    }
    log_info("loss ", sum / count, " over ", labels_given, " labels");
  }
  if (launch.rank == 0) write_results(options.output, results);
}

}  // namespace

void add_forward_command(Command& app) {
  auto o = std::make_shared<ForwardArguments>();
  Command* command = app.add_subcommand(
      "forward", "Logits, loss and gradients of one batch, or log-probabilities of its tokens");
  command->add_option("--model", o->model, "Hugging Face directory, checkpoint or directory of a run")
      ->required();
  add_adapter_option(*command, o->adapter);
  command
      ->add_option(
          "--input", o->input,
          "safetensors with input_ids and, optionally, labels (i64, [batch, seq], labels already shifted, "
          "-100 = ignored)")
      ->required();
  command->add_option("--output", o->output, "safetensors to write: logits, loss, grad.<name>; logprobs")
      ->required();
  auto* grads =
      command->add_flag("--grads", o->grads, "also write the gradient of the mean loss for every parameter");
  auto* logprobs = command->add_flag(
      "--logprobs", o->logprobs,
      "in place of the logits write logprobs, f32 [batch, seq]: the natural logarithm of the probability of "
      "each label after the tokens up to its position, 0 where there is no label; without labels in the "
      "input, of the next token. Logits never exist as a whole");
  logprobs->excludes(grads);
  command
      ->add_option(
          "--set", o->overrides,
          "distributed.key=value, as in a recipe: how several ranks share the work of --logprobs; may "
          "be repeated")
      ->allow_extra_args(false)
      ->needs(logprobs);
  command->add_option("--dtype", o->dtype, "f32, bf16 or f64: storage of the weights")->capture_default_str();
  add_device_option(*command, o->device, "cpu");
  add_share_device_option(*command, o->share_device);
  command->callback_of_ranks([o](const Launch& launch) { run(*o, launch); });
}

}  // namespace nemocube
