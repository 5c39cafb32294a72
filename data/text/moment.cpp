#include "data/text/moment.h"

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string_view>

#include "core/error.h"
#include "core/quote.h"

namespace nemocube {

namespace {

using std::chrono::floor;
using Micros = std::chrono::microseconds;

/// Reads a text from its beginning to its end.
class MomentReader {
 public:
  explicit MomentReader(std::string_view text) : rest_(text) {}
  bool at_end() const { return rest_.empty(); }
  bool takes(char c) {
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  /// A number of exactly so many digits that is at most `most`.
  int number(int digits, int most) {
    int value = 0;
    for (int i = 0; i < digits; ++i) value = value * 10 + digit();
    good_ = good_ && value <= most;
    return value;
  }
  /// The digits behind the point, of which six count.
  int micros() {
    int value = 0;
    int digits = 0;
    for (; !rest_.empty() && rest_[0] >= '0' && rest_[0] <= '9'; ++digits) {
      const int next = digit();
      if (digits < 6) value = value * 10 + next;
    }
    good_ = good_ && digits > 0;
    for (; digits < 6; ++digits) value *= 10;
    return value;
  }
  void want(bool condition) { good_ = good_ && condition; }
  bool good() const { return good_; }

 private:
  int digit() {
    const bool is_digit = !rest_.empty() && rest_[0] >= '0' && rest_[0] <= '9';
    good_ = good_ && is_digit;
    if (!is_digit) return 0;
    const int value = rest_[0] - '0';
    rest_.remove_prefix(1);
    return value;
  }
  std::string_view rest_;
  bool good_ = true;
};

std::chrono::seconds read_offset(MomentReader& in) {
  if (in.at_end() || in.takes('Z')) return {};
  const bool west = in.takes('-');
  in.want(west || in.takes('+'));
  int seconds = in.number(2, 23) * 3600;
  in.want(in.takes(':'));
  seconds += in.number(2, 59) * 60;
  if (in.takes(':')) seconds += in.number(2, 59);
  return std::chrono::seconds(west ? -seconds : seconds);
}

}  // namespace

Moment Moment::now() {
  Moment moment{std::chrono::system_clock::now()};
  const std::time_t seconds = std::chrono::system_clock::to_time_t(moment.time);
  std::tm fields{};
  localtime_r(&seconds, &fields);
  moment.east_of_utc = std::chrono::seconds(fields.tm_gmtoff);
  return moment;
}

std::string to_string(const Moment& moment) {
  const auto shown = moment.time + moment.east_of_utc;
  const auto day = floor<std::chrono::days>(shown);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(floor<Micros>(shown - day));
  const std::int64_t offset = moment.east_of_utc.count(), size = offset < 0 ? -offset : offset;
  char text[64];
  std::snprintf(text, sizeof text, "%04d-%02u-%02uT%02d:%02d:%02d.%06d%c%02d:%02d",
                static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                static_cast<unsigned>(date.day()), static_cast<int>(clock.hours().count()),
                static_cast<int>(clock.minutes().count()), static_cast<int>(clock.seconds().count()),
                static_cast<int>(clock.subseconds().count()), offset < 0 ? '-' : '+',
                static_cast<int>(size / 3600), static_cast<int>(size / 60 % 60));
  std::string all = text;
  if (size % 60 != 0) {
    std::snprintf(text, sizeof text, ":%02d", static_cast<int>(size % 60));
    all += text;
  }
  return all;
}

Moment parse_moment(const std::string& text) {
  MomentReader in(text);
  const std::chrono::year year(in.number(4, 2199));
  in.want(static_cast<int>(year) >= 1900 && in.takes('-'));
  const std::chrono::month month(static_cast<unsigned>(in.number(2, 12)));
  in.want(in.takes('-'));
  const std::chrono::day day(static_cast<unsigned>(in.number(2, 31)));
  const std::chrono::year_month_day date(year, month, day);
  Micros time{0};
  if (in.takes('T') || in.takes(' ')) {
    time += std::chrono::hours(in.number(2, 23));
    in.want(in.takes(':'));
    time += std::chrono::minutes(in.number(2, 59));
    if (in.takes(':')) {
      time += std::chrono::seconds(in.number(2, 59));
      if (in.takes('.')) time += Micros(in.micros());
    }
  }
  const std::chrono::seconds offset = read_offset(in);
  require(in.good() && in.at_end() && date.ok(),
          "want a moment such as 2026-11-30, 2026-11-30T05:38 or 2026-11-30T05:38:19.123456+01:00, got ",
          quote(text));
  return {std::chrono::sys_days(date) + time - offset, offset};
}

}  // namespace nemocube
