#include "train/look/watch/watch.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "train/look/watch/nearest_folder.h"
#include "train/look/watch/run_logs.h"
#include "train/look/watch/terminal.h"
#include "train/look/watch/view.h"

namespace nemocube {
namespace {

using Seconds = std::chrono::duration<double>;

class Watch {
 public:
  explicit Watch(const WatchOptions& options)
      : options_(options),
        logs_(options.run, static_cast<std::size_t>(options.steps)),
        name_(std::filesystem::absolute(options.run).lexically_normal().string()),
        utf8_(utf8_locale()),
        colour_(colour_wanted()) {
    if (name_.size() > 1 && name_.ends_with('/')) name_.pop_back();
  }

  int on_terminal() {
    int signal = 0;
    {
      Terminal terminal;
      for (bool goes_on = true; goes_on;) {
        const bool more = look();
        terminal.draw(lines());
        if (!more && over()) break;
        switch (terminal.wait(more ? 0 : options_.interval)) {
          case Terminal::Event::quit:
            goes_on = false;
            break;
          case Terminal::Event::signal:
            signal = terminal.received();
            goes_on = false;
            break;
          default:
            break;
        }
      }
    }
    print();
    return signal;
  }

  int once() {
    while (logs_.poll()) {
    }
    print();
    return 0;
  }

 private:
  bool over() const { return logs_.run().end && !options_.keep; }

  // True when there is more to read now.
  bool look() {
    const std::size_t before = logs_.lines_read();
    const bool more = logs_.poll();
    const auto now = std::chrono::steady_clock::now();
    if (logs_.lines_read() != before && caught_up_) grew_at_ = now;
    caught_up_ = caught_up_ || !more;  // lines that were there already are no news
    return more;
  }

  std::vector<std::string> lines() const {
    WatchMoment moment;
    moment.now = Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
    if (grew_at_) moment.quiet = Seconds(std::chrono::steady_clock::now() - *grew_at_).count();
    std::error_code none;
    moment.has_folder = std::filesystem::exists(options_.run, none);
    if (!moment.has_folder) moment.nearest = nearest_folder(options_.run).string();
    TerminalSize size = terminal_size();
    // The last column stays free: on some terminals what erases the rest of a line erases a character there.
    if (terminal_on_stdout() && size.columns > 1) --size.columns;
    return view(name_, logs_.run(), moment, {size.columns, size.rows, utf8_, colour_});
  }

  void print() const {
    std::string text;
    for (const std::string& line : lines()) text += line + "\n";
    write_stdout(text);
  }

  const WatchOptions& options_;
  RunLogs logs_;
  std::string name_;
  bool utf8_, colour_;
  bool caught_up_ = false;
  std::optional<std::chrono::steady_clock::time_point> grew_at_;
};

}  // namespace

int watch_run(const WatchOptions& options) {
  Watch watch(options);
  return options.once || !terminal_on_stdout() ? watch.once() : watch.on_terminal();
}

}  // namespace nemocube
