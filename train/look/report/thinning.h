#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

/// Long curves in bounded memory: points come one after another, and some points of each run of neighbours
/// are kept. The runs double in length whenever they become too many.
namespace nemocube::run_report {

struct Point {
  double x = 0, y = 0;
  friend bool operator==(const Point&, const Point&) = default;
};

/// Keeps every point while there are at most `most`. Beyond that the object keeps the lowest and the highest
/// point of each run, and the first and the last point of all.
class ThinnedPoints {
 public:
  explicit ThinnedPoints(std::size_t most = 1000) : most_(most) {}
  void add(Point point);
  std::vector<Point> points() const;             ///< in the order of add(); at most `most` + 2
  std::int64_t count() const { return count_; }  ///< of add()
  std::optional<Point> first() const { return first_; }
  std::optional<Point> last() const { return last_; }
  std::optional<Point> lowest() const;   ///< the first of the lowest
  std::optional<Point> highest() const;  ///< the first of the highest

 private:
  struct Run {
    Point low, high;
    bool low_first = true;
    std::int64_t count = 0;
  };
  static void join(Run& run, const Run& next);
  std::size_t most_runs() const { return run_length_ == 1 ? most_ : most_ / 2; }
  void halve();

  std::size_t most_;
  std::int64_t run_length_ = 1, count_ = 0;
  std::vector<Run> runs_;
  std::optional<Point> first_, last_;
};

/// Means of several values over runs of neighbouring points.
class RunMeans {
 public:
  struct Mean {
    double first_x = 0, last_x = 0;
    std::vector<double> values;
    std::int64_t count = 0;
  };
  explicit RunMeans(std::size_t most = 120) : most_(most) {}
  /// Every call gives as many values.
  void add(double x, const std::vector<double>& values);
  std::vector<Mean> means() const;  ///< at most `most`
  std::int64_t run_length() const { return run_length_; }

 private:
  std::size_t most_;
  std::int64_t run_length_ = 1;
  std::vector<Mean> sums_;
};

}  // namespace nemocube::run_report
