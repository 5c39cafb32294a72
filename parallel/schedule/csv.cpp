#include "parallel/schedule/csv.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "core/error.h"
#include "core/quote.h"
#include "parallel/schedule/fields.h"
#include "parallel/schedule/simulate.h"

namespace nemocube {
namespace {

std::optional<Action::Kind> kind_of(std::string_view letters) {
  if (letters.size() == 1)
    for (int kind = 0; kind < 4; ++kind)
      if (letters[0] == letter_of(static_cast<Action::Kind>(kind))) return static_cast<Action::Kind>(kind);
  return {};
}

bool is_communication(std::string_view letters) {
  constexpr std::array<std::string_view, 10> names{
      "SEND_F",  "RECV_F",      "SEND_B",      "RECV_B",      "UNSHARD",
      "RESHARD", "REDUCE_GRAD", "WAIT_SEND_F", "WAIT_SEND_B", "WAIT_REDUCE_GRAD"};
  return std::find(names.begin(), names.end(), letters) != names.end();
}

std::optional<std::int64_t> number(std::string_view digits) {
  std::int32_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  return error == std::errc() && stop == end ? std::optional<std::int64_t>(value) : std::nullopt;
}

/// Adds the action of a cell to `actions`; false for a cell that is none of those that may occur.
bool parse_cell(std::string_view cell, std::vector<Action>& actions) {
  if (cell.empty()) return true;
  constexpr std::string_view digits = "0123456789";
  const auto letters = std::min(cell.find_first_not_of(digits), cell.size());
  const auto microbatch = cell.find_last_not_of(digits) + 1;
  if (letters >= microbatch) return false;
  const std::string_view name = cell.substr(letters, microbatch - letters);
  const auto stage = number(cell.substr(0, letters)), index = number(cell.substr(microbatch));
  if (is_communication(name)) return stage.has_value();
  const auto kind = kind_of(name);
  if (!kind || !stage || !index) return false;
  actions.push_back({*kind, *stage, *index});
  return true;
}

}  // namespace

void write_schedule_csv(std::ostream& out, const Schedule& schedule) {
  const Simulation steps = simulate(schedule, {.backward = 1});
  for (std::size_t rank = 0; rank < schedule.size(); ++rank) {
    std::size_t action = 0;
    for (std::int64_t column = 0; column < static_cast<std::int64_t>(steps.makespan); ++column) {
      if (column > 0) out << ',';
      if (action < schedule[rank].size() && steps.times[rank][action].start == static_cast<double>(column))
        out << schedule[rank][action++];
    }
    out << '\n';
  }
}

Schedule parse_schedule_csv(std::string_view text, std::string_view source) {
  Schedule schedule;
  for (const std::string_view row : fields_of(text.substr(0, text.find_last_not_of(" \t\r\n") + 1), '\n')) {
    std::vector<Action>& actions = schedule.emplace_back();
    std::int64_t column = 0;
    for (const std::string_view cell : fields_of(row, ',')) {
      ++column;
      require(parse_cell(cell, actions), source, ": row ", schedule.size(), ", column ", column, ": ",
              quote(cell), "; want STAGE, then F, B, I or W, then MICROBATCH, such as 4B1, or nothing");
    }
  }
  return schedule;
}

}  // namespace nemocube
