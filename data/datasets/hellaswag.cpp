#include "data/datasets/hellaswag.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "data/datasets/completion.h"
#include "data/datasets/json_rows.h"
#include "data/datasets/row_forms.h"

namespace nemocube {

namespace {

/// An integer, or the text of one.
std::size_t read_label(const JsonView& label, std::size_t endings) {
  std::int64_t number = -1;
  if (label.value().is_string()) {
    const std::string_view text = label.string();
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || stop != text.data() + text.size()) number = -1;
  } else {
    number = label.integer();
  }
  if (number < 0 || number >= static_cast<std::int64_t>(endings))
    label.refuse(cat("the number of the right ending, 0 to ", endings - 1));
  return static_cast<std::size_t>(number);
}

}  // namespace

HellaSwagQuestion read_hellaswag(const JsonView& row, std::int64_t number) {
  want_keys(row, {"ctx", "endings", "label"}, "hellaswag", hellaswag_form);
  HellaSwagQuestion question;
  question.id = row_id(row, cat("row ", number), "ind");
  question.context = row.at("ctx").string();
  const auto endings = row.at("endings").elements();
  if (endings.empty()) row.at("endings").refuse("a list of endings");
  question.ending = endings[read_label(row.at("label"), endings.size())].string();
  return question;
}

TokenRow hellaswag_row(const HellaSwagQuestion& question, const Tokenizer& tokenizer,
                       const HellaSwagOptions& options) {
  TokenRow row;
  row.id = question.id;
  for (const std::int64_t id : tokenizer.special_prefix()) row.append(id, false);
  row.leading = row.size();
  for (const std::int64_t id : tokenizer.encode(question.context, false)) row.append(id, false);
  for (const std::int64_t id : tokenizer.encode(options.separator + question.ending, false))
    row.append(id, true);
  for (const std::int64_t id : tokenizer.special_suffix()) row.append(id, true);
  RowOptions end;
  end.append_eos = options.append_eos;
  end.eos_id = options.eos_id;
  append_eos("HellaSwag data set", row, tokenizer, end);
  return row;
}

RowSource hellaswag_rows(const Tokenizer& tokenizer, const HellaSwagOptions& options) {
  RowSource source;
  source.what = cat("HellaSwag data set ", names_of(options.files));
  source.files = options.files;
  source.selection = options.selection;
  source.layout.keep_last = true;
  source.layout.pad_id = options.pad_id;
  if (options.pad_to_max_length) source.longest_multiple = 8;
  source.pad_id = padding_id(tokenizer, source.layout);
  const auto shared = std::make_shared<const HellaSwagOptions>(options);
  source.read = [tokenizer, shared](const JsonView& row, std::int64_t number) -> RowMaker {
    return [tokenizer, shared, question = read_hellaswag(row, number)] {
      return hellaswag_row(question, tokenizer, *shared);
    };
  };
  return source;
}

}  // namespace nemocube
