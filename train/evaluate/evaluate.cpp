#include "train/evaluate/evaluate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/cuda/streams.h"
#include "core/host_wait.h"
#include "core/log.h"
#include "data/chat/end_of_turn.h"
#include "data/datasets/text.h"
#include "data/json/atomic_file.h"
#include "data/json/json.h"
#include "data/loader/loader.h"
#include "parallel/comm/together.h"
#include "train/datasets/recipe_datasets.h"
#include "train/evaluate/held_weights.h"
#include "train/generate/generate.h"
#include "train/step/train_step.h"

namespace nemocube {
namespace {

/// Rows count as done when the device is done with them: the host queues batches far ahead of a CUDA device.
class FinishedRows {
 public:
  FinishedRows(Device device, const OnProgress& progress, std::int64_t total)
      : device_(device), progress_(progress), total_(total) {}

  /// All work on the first `rows` rows is queued.
  void queued(std::int64_t rows) {
    if (!progress_) return;
    batches_.push_back({device_.is_cuda() ? cuda::record_event(cuda::Stream::compute) : cuda::Event(), rows});
    report();
  }
  /// Returns when all are done. Nothing is queued any more, so the device need not be kept busy.
  void wait() {
    constexpr std::chrono::milliseconds longest(50);
    for (std::chrono::microseconds pause(100); !batches_.empty(); report()) {
      std::this_thread::sleep_for(pause);
      pause = std::min<std::chrono::microseconds>(2 * pause, longest);
    }
  }

 private:
  void report() {
    std::int64_t done = 0;
    for (; !batches_.empty() && reached(batches_.front().end); batches_.pop_front())
      done = batches_.front().rows;
    if (done > 0) progress_(done, total_);
  }
  bool reached(const cuda::Event& event) const { return !device_.is_cuda() || cuda::event_reached(event); }

  struct QueuedBatch {
    cuda::Event end;
    std::int64_t rows;  ///< up to its end
  };
  Device device_;
  const OnProgress& progress_;
  std::int64_t total_;
  std::deque<QueuedBatch> batches_;
};

std::array<double, 2> host_values(const Tensor& losses) {
  const HostWaitName name("validation loss");
  const std::vector<double> values = losses.to_vector();
  return {values[0], values[1]};
}

/// Numbers serve the corruption alone: validation draws nothing else.
TokenBatch rows_of(const Batch& batch, const std::optional<Corruption>& corruption) {
  if (!corruption) return without_padding(batch);
  TokenBatch rows = corrupted(numbered_without_padding({&batch, 1}).front(), *corruption);
  rows.sequences = rows.sequences.numbered({});
  return rows;
}

}  // namespace

ValidationResult validate(ParallelModel& model, std::shared_ptr<const Dataset> dataset,
                          std::int64_t batch_size, const KernelChoice* kernels, const StopAsked& stop,
                          const OnProgress& progress, const std::optional<Corruption>& corruption,
                          const OnScoredRows& on_rows, DataParallel::Held hold) {
  expect(!on_rows || !corruption, "log-probabilities of corrupted rows");
  LoaderOptions options;
  options.batch_size = batch_size;
  options.dp_rank = model.replicas().rank();
  options.dp_size = model.replicas().size();
  Loader loader(std::move(dataset), options);
  const HeldWeights held(model, hold);
  ValidationResult result;
  const Tensor losses = Tensor::zeros({2}, DType::f64, model.model().device());
  std::int64_t noised_tokens = 0;
  FinishedRows finished(model.model().device(), progress, loader.dataset().size());
  while (!loader.epoch_done()) {
    if (stop && stop()) {
      result.complete = false;
      break;
    }
    const std::int64_t first_row = loader.state().next_index;
    const Batch batch = loader.next();
    const TokenBatch tokens = rows_of(batch, corruption);
    Tensor token_losses;
    const EvaluatedTokens counts =
        evaluate_loss(model, tokens, kernels, losses, on_rows ? &token_losses : nullptr);
    result.label_tokens += counts.labels;
    noised_tokens += counts.noised;
    if (on_rows)
      on_rows({first_row, loader.state().next_index,
               all_log_probabilities(
                   model, own_log_probabilities(model, tokens, token_places(batch), token_losses))});
    if (model.first_of_replica()) result.samples += batch.samples;
    finished.queued(loader.state().next_index);
  }
  finished.wait();
  std::array<std::int64_t, 3> counts{result.label_tokens, result.samples, noised_tokens};
  const auto [of_labels, of_noised] = host_values(losses);
  const double sum = model.sum(of_labels), noised_sum = corruption ? model.sum(of_noised) : 0;
  model.sum(counts);
  result.label_tokens = counts[0];
  result.samples = counts[1];
  result.loss = sum / static_cast<double>(result.label_tokens);
  if (counts[2] > 0) result.loss += noised_sum / static_cast<double>(counts[2]);
  if (result.complete && result.label_tokens == 0)
    log_warning("validation: none of the ", result.samples,
                " rows has a token with a label, so the loss is NaN");
  return result;
}

namespace {

// The caller may stop between groups.
constexpr std::size_t questions_at_once = 32;

/// Cuts like rows of the training data: the prefix stays if it leaves room for a part of the question.
std::vector<std::int64_t> prompt_ids(const SquadQuestion& question, const Tokenizer& tokenizer,
                                     const DatasetSection& section,
                                     const std::optional<ChatTemplate>& chat_template) {
  std::vector<std::int64_t> ids = tokenizer.encode(squad_prompt(question, chat_template), false);
  const auto prefix = chat_template ? std::vector<std::int64_t>() : tokenizer.special_prefix();
  std::int64_t room = std::numeric_limits<std::int64_t>::max();
  if (section.truncation && section.seq_length) room = *section.seq_length;
  const bool keeps_prefix = std::ssize(prefix) < room;
  if (keeps_prefix) room -= std::ssize(prefix);
  if (std::ssize(ids) > room) ids.erase(ids.begin(), ids.end() - room);
  if (keeps_prefix) ids.insert(ids.begin(), prefix.begin(), prefix.end());
  return ids;
}

}  // namespace

namespace {

/// What the model says to each of the questions; fewer when `stop` came in between.
std::vector<std::string> answers_of(ParallelModel& model, const Tokenizer& tokenizer,
                                    const DatasetSection& section,
                                    const std::vector<SquadQuestion>& questions,
                                    const std::optional<ChatTemplate>& chat_template,
                                    const GenerateOptions& generation, bool stop_at_newline,
                                    const StopAsked& stop, const OnProgress& progress) {
  std::vector<std::string> predictions;
  const bool together = !model.independent_replicas();
  const std::int64_t most = together ? model.largest(std::ssize(questions)) : std::ssize(questions);
  for (std::size_t begin = 0; static_cast<std::int64_t>(begin) < most; begin += questions_at_once) {
    const std::size_t first = std::min(questions.size(), begin),
                      last = std::min(questions.size(), first + questions_at_once);
    std::vector<std::vector<std::int64_t>> prompts;
    for (std::size_t i = first; i < last; ++i)
      prompts.push_back(prompt_ids(questions[i], tokenizer, section, chat_template));
    const OnToken ends = [&](std::size_t, std::int64_t id) {
      if (!together && stop && stop()) return true;
      const std::array<std::int64_t, 1> one{id};
      return stop_at_newline && tokenizer.decode(one, true).find('\n') != std::string::npos;
    };
    const OnProgress of_group = [&](std::int64_t done, std::int64_t total) {
      const auto here =
          static_cast<double>(last - first) * static_cast<double>(done) / static_cast<double>(total);
      if (progress && !questions.empty())
        progress(static_cast<std::int64_t>(first) + static_cast<std::int64_t>(here),
                 static_cast<std::int64_t>(questions.size()));
    };
    const auto answers = generate(model, prompts, generation, ends, of_group);
    if (stop && stop()) break;
    for (const std::vector<std::int64_t>& answer : answers) {
      std::string text = tokenizer.decode(answer, true);
      if (stop_at_newline) text.resize(std::min(text.find('\n'), text.size()));
      predictions.emplace_back(strip(text));
    }
  }
  return predictions;
}

/// Question i is that of rank i mod ranks, as its number i / ranks there. Ends where a rank has no answer.
std::vector<std::string> predictions_of_ranks(Communicator& group, const std::vector<std::string>& own,
                                              std::size_t questions) {
  std::vector<Json> of_rank;
  for (const std::string& text : gather_texts(&group, Json(own).dump())) of_rank.push_back(Json::parse(text));
  std::vector<std::string> all;
  const auto ranks = static_cast<std::size_t>(group.size());
  for (std::size_t i = 0; i < questions && i / ranks < of_rank[i % ranks].size(); ++i)
    all.push_back(of_rank[i % ranks][i / ranks].get<std::string>());
  return all;
}

}  // namespace

SquadResult answer_squad(ParallelModel& model, const Tokenizer& tokenizer, const DatasetSection& section,
                         const EvaluationSection& options, std::vector<std::int64_t> stop_ids,
                         const KernelChoice* kernels, const StopAsked& stop, const OnProgress& progress,
                         const std::optional<ChatTemplate>& chat_template) {
  std::vector<SquadQuestion> questions = read_squad(squad_options(section));
  SquadResult result;
  if (std::ranges::any_of(questions, [](const SquadQuestion& q) { return q.answers.empty(); }))
    result.version = SquadVersion::v2_0;
  if (options.limit_samples && *options.limit_samples < static_cast<std::int64_t>(questions.size()))
    questions.resize(static_cast<std::size_t>(*options.limit_samples));
  GenerateOptions generation;
  generation.max_new_tokens = options.max_new_tokens;
  generation.stop_ids = std::move(stop_ids);
  if (chat_template)
    if (const auto end = end_of_turn(*chat_template, tokenizer, generation.stop_ids))
      generation.stop_ids.push_back(*end);
  generation.kernels = kernels;
  std::vector<SquadQuestion> own;
  const auto rank = static_cast<std::size_t>(model.replicas().rank()),
             ranks = static_cast<std::size_t>(model.replicas().size());
  for (std::size_t i = rank; i < questions.size(); i += ranks) own.push_back(questions[i]);
  const HeldWeights held(model, DataParallel::Held::everything);
  std::vector<std::string> predictions = answers_of(model, tokenizer, section, own, chat_template, generation,
                                                    options.stop_at_newline, stop, progress);
  predictions = predictions_of_ranks(model.replicas(), predictions, questions.size());
  result.complete = predictions.size() == questions.size();
  SquadScorer scorer(result.version);
  for (std::size_t i = 0; i < predictions.size(); ++i) {
    AnsweredQuestion a{
        questions[i].id, questions[i].question, predictions[i], questions[i].answer_texts(), {}};
    a.score = scorer.add(a.prediction, a.answers);
    result.answered.push_back(std::move(a));
  }
  result.score = scorer.score();
  return result;
}

std::filesystem::path predictions_file(std::filesystem::path path, const std::string& set) {
  if (set != "default") path.replace_filename(cat(path.stem().string(), "_", set, path.extension().string()));
  return path;
}

void write_predictions(const std::filesystem::path& path, const std::string& set, const SquadResult& result) {
  Json json = Json::object();
  for (const AnsweredQuestion& a : result.answered) json[a.id] = a.prediction;
  write_file_atomically(predictions_file(path, set), dump_json(json) + "\n");
}

void check_predictions_place(const Recipe& recipe) {
  if (!recipe.evaluation.predictions_path) return;
  for (const auto& [name, section] : recipe.validation_datasets)
    if (section.kind == DatasetKind::squad)
      check_output_place(predictions_file(*recipe.evaluation.predictions_path, name));
}

}  // namespace nemocube
