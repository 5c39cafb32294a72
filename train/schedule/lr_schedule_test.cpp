#include "train/schedule/lr_schedule.h"

#include <doctest/doctest.h>

#include <cmath>
#include <sstream>
#include <utility>
#include <vector>

using namespace nemocube;

namespace {

using Points = std::vector<std::pair<std::int64_t, double>>;

void check_points(const LrSchedule& schedule, const Points& points) {
  for (const auto& [n, want] : points) {
    CAPTURE(n);
    CAPTURE(want);
    const double got = schedule.lr(n);
    CAPTURE(got);
    CHECK(std::abs(got - want) <= 1e-12 * want);
  }
}

ScheduleOptions table_a(DecayStyle style) {
  ScheduleOptions o;
  o.style = style;
  o.init_lr = 1e-5;
  o.max_lr = 1e-3;
  o.min_lr = 1e-6;
  o.warmup = 100;
  o.decay = 1000;
  return o;
}

LrSchedule table_a_wsd(WsdStyle style) {
  ScheduleOptions o = table_a(DecayStyle::wsd);
  o.wsd_decay = 300;
  o.wsd_style = style;
  return LrSchedule(o);
}

ScheduleOptions weight_decay(WeightDecayStyle style) {
  ScheduleOptions o;
  o.start_wd = 0.01;
  o.end_wd = 0.1;
  o.wd_incr = 500;
  o.wd_style = style;
  return o;
}

std::string error_of(const ScheduleOptions& options) {
  try {
    LrSchedule schedule(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

Recipe recipe_of(const std::string& yaml) { return parse_recipe(yaml, "r.yaml", {}, RecipeUse::schedule); }

std::string printed(const std::string& yaml) {
  std::ostringstream out;
  print_schedule(out, recipe_of(yaml));
  return out.str();
}

}  // namespace

TEST_CASE("decay styles: values tabulated with upstream's scheduler") {
  const Points warmup{{0, 1e-5}, {50, 5.05e-4}, {100, 1e-3}};
  for (const DecayStyle style :
       {DecayStyle::linear, DecayStyle::cosine, DecayStyle::inverse_square_root, DecayStyle::constant})
    check_points(LrSchedule(table_a(style)), warmup);
  check_points(
      LrSchedule(table_a(DecayStyle::linear)),
      {{101, 9.9889e-4}, {325, 7.5025e-4}, {550, 5.005e-4}, {775, 2.5075e-4}, {1000, 1e-6}, {1001, 1e-6}});
  check_points(LrSchedule(table_a(DecayStyle::cosine)), {{101, 9.999969568750663e-4},
                                                         {325, 8.536998372026805e-4},
                                                         {550, 5.005e-4},
                                                         {775, 1.473001627973196e-4},
                                                         {1000, 1e-6},
                                                         {1001, 1e-6}});
  check_points(LrSchedule(table_a(DecayStyle::inverse_square_root)), {{101, 9.95037190209989e-4},
                                                                      {325, 5.547001962252292e-4},
                                                                      {550, 4.264014327112208e-4},
                                                                      {775, 3.592106040535498e-4},
                                                                      {1000, 3.162277660168379e-4},
                                                                      {1001, 1e-6}});
  check_points(LrSchedule(table_a(DecayStyle::constant)),
               {{101, 1e-3}, {1000, 1e-3}, {1001, 1e-3}, {99999, 1e-3}});
}

TEST_CASE("WSD tails: values tabulated with upstream's scheduler") {
  for (const WsdStyle style :
       {WsdStyle::linear, WsdStyle::cosine, WsdStyle::exponential, WsdStyle::minus_sqrt})
    check_points(table_a_wsd(style),
                 {{50, 5.05e-4}, {100, 1e-3}, {101, 1e-3}, {700, 1e-3}, {1000, 1e-6}, {1001, 1e-6}});
  check_points(table_a_wsd(WsdStyle::linear),
               {{701, 9.9667e-4}, {775, 7.5025e-4}, {850, 5.005e-4}, {925, 2.5075e-4}});
  check_points(table_a_wsd(WsdStyle::cosine), {{701, 9.999726120980734e-4},
                                               {775, 8.536998372026805e-4},
                                               {850, 5.005e-4},
                                               {925, 1.473001627973196e-4}});
  check_points(table_a_wsd(WsdStyle::exponential), {{701, 9.953889687009927e-4},
                                                    {775, 6.821110376769217e-4},
                                                    {850, 4.147993488107221e-4},
                                                    {925, 1.900179078877183e-4}});
  check_points(table_a_wsd(WsdStyle::minus_sqrt), {{701, 9.423227081079565e-4},
                                                   {775, 5.005e-4},
                                                   {850, 2.93600325594639e-4},
                                                   {925, 1.348406216193458e-4}});
}

TEST_CASE("schedules that count samples") {
  ScheduleOptions o;
  o.style = DecayStyle::wsd;
  o.wsd_style = WsdStyle::minus_sqrt;
  o.max_lr = 1.2e-3;
  o.min_lr = 1.2e-5;
  o.warmup = 1'024'000;
  o.decay = 35'600'000;
  o.wsd_decay = 5'490'000;
  check_points(LrSchedule(o), {{768, 9e-7},
                               {512'000, 6e-4},
                               {1'024'000, 1.2e-3},
                               {30'110'000, 1.2e-3},
                               {30'110'768, 1.1859488820816955e-3},
                               {32'855'000, 3.599571439503815e-4},
                               {35'600'000, 1.2e-5},
                               {36'621'094, 1.2e-5}});
  o.decay = 121'046'313;
  o.wsd_decay = 18'310'547;
  check_points(
      LrSchedule(o),
      {{102'735'766, 1.2e-3}, {102'735'767, 1.1997223703909994e-3}, {111'891'039, 3.599571668889520e-4}});

  const LrSchedule schedule = make_schedule(
      recipe_of("step_scheduler: {global_batch_size: 768, max_steps: 47684}\noptimizer: {lr: 1.2e-3}\n"
                "lr_scheduler: {unit: samples, init_lr: 0, min_lr: 1.2e-5, lr_warmup_steps: 1024000, "
                "lr_decay_steps: "
                "35600000, lr_decay_style: WSD, wsd_decay_steps: 5490000, lr_wsd_decay_style: minus_sqrt}"),
      47684);
  CHECK(schedule.options().per_step == 768);
  check_points(schedule, {{768, 9e-7}, {30'110'768, 1.1859488820816955e-3}});
  const LrSchedule defaults = make_schedule(
      recipe_of("step_scheduler: {global_batch_size: 8, max_steps: 50}\nlr_scheduler: {unit: samples}"), 50);
  CHECK(defaults.options().warmup == 5 * 8);
  CHECK(defaults.options().decay == 50 * 8);
}

TEST_CASE("values that a real run logged after each step") {
  const auto schedule = [](int steps) {
    return make_schedule(
        recipe_of(cat("step_scheduler: {max_steps: ", steps,
                      "}\noptimizer: {_target_: "
                      "torch.optim.SGD, lr: 5.0e-5}\nlr_scheduler: {lr_decay_style: cosine, min_lr: "
                      "1.0e-6}")),
        steps);
  };
  check_points(schedule(50), {{1, 1.4e-5},
                              {2, 2.3e-5},
                              {3, 3.2e-5},
                              {4, 4.1e-5},
                              {5, 5e-5},
                              {6, 4.994031923136569e-5},
                              {7, 4.976156768416848e-5},
                              {8, 4.946461621797824e-5},
                              {49, 1.059680768634307e-6},
                              {50, 1e-6}});
  check_points(schedule(10), {{1, 5e-5},
                              {2, 4.852246920925476e-5},
                              {3, 4.426808885641496e-5},
                              {4, 3.775e-5},
                              {5, 2.97543803528398e-5},
                              {6, 2.124561964716021e-5},
                              {7, 1.325e-5},
                              {8, 6.731911143585042e-6},
                              {9, 2.4775307907452464e-6},
                              {10, 1e-6}});
  check_points(schedule(2), {{0, 5e-5}, {1, 2.55e-5}, {2, 1e-6}});
}

TEST_CASE("weight decay grows from start to end") {
  const auto check = [](WeightDecayStyle style, const Points& points) {
    const LrSchedule schedule(weight_decay(style));
    for (const auto& [n, want] : points) CHECK(std::abs(schedule.weight_decay(n) - want) <= 1e-12 * want);
  };
  check(WeightDecayStyle::linear,
        {{0, 0.01}, {125, 0.0325}, {250, 0.055}, {375, 0.0775}, {500, 0.1}, {501, 0.1}});
  check(
      WeightDecayStyle::cosine,
      {{0, 0.01}, {125, 0.023180194846605}, {250, 0.055}, {375, 0.086819805153395}, {500, 0.1}, {501, 0.1}});
}

TEST_CASE("contradicting options are errors that name the key") {
  CHECK(error_of({}) == "no error");
  const auto broken = [](auto change) {
    ScheduleOptions o = table_a(DecayStyle::cosine);
    change(o);
    return error_of(o);
  };
  CHECK(broken([](auto& o) { o.min_lr = -1; }) == "lr_scheduler.min_lr = -1: want a nonnegative number");
  CHECK(broken([](auto& o) { o.min_lr = 1; }) == "lr_scheduler.max_lr = 0.001: want at least min_lr = 1");
  CHECK(broken([](auto& o) { o.init_lr = 1; }) == "lr_scheduler.init_lr = 1: want 0 to max_lr = 0.001");
  CHECK(broken([](auto& o) { o.max_lr = NAN; }).starts_with("lr_scheduler.max_lr = nan"));
  CHECK(broken([](auto& o) { o.decay = 0; }) == "lr_scheduler.lr_decay_steps = 0: want a positive integer");
  CHECK(broken([](auto& o) { o.warmup = 1000; }) ==
        "lr_scheduler.lr_warmup_steps = 1000: want 0 or more and less than lr_decay_steps = 1000");
  CHECK(broken([](auto& o) {
          o.style = DecayStyle::wsd;
        }).starts_with("lr_scheduler.wsd_decay_steps is missing"));
  CHECK(broken([](auto& o) {
          o.style = DecayStyle::wsd, o.wsd_decay = 3;
        }).starts_with("lr_scheduler.lr_wsd_decay_style is missing"));
  CHECK(broken([](auto& o) { o.start_wd = 1; }) == "lr_scheduler.end_wd = 0: want at least start_wd = 1");
  CHECK(broken([](auto& o) { o.end_wd = 1; }).starts_with("lr_scheduler.wd_incr_style constant wants equal"));
  CHECK(broken([](auto& o) {
          o.end_wd = 1, o.wd_style = WeightDecayStyle::linear;
        }).starts_with("lr_scheduler.wd_incr_steps = 0"));
  CHECK_THROWS_WITH(
      make_schedule(recipe_of("step_scheduler: {max_steps: 9}\nlr_scheduler: {lr_warmup_steps: 9}"), 9),
      "r.yaml: lr_scheduler.lr_warmup_steps = 9: want 0 or more and less than lr_decay_steps = 9 "
      "(lr_decay_steps is "
      "absent, so step_scheduler.max_steps = 9 counts)");
  const std::string by_data =
      "r.yaml: lr_scheduler.lr_warmup_steps = 9: want 0 or more and less than lr_decay_steps = 8 "
      "(lr_decay_steps is "
      "absent, so the length of the run counts: 8 steps, which the data gives in step_scheduler.num_epochs = "
      "2 "
      "epochs)";
  for (const std::string more : {"", ", max_steps: 100"}) {
    const Recipe recipe = parse_recipe(cat("dataset: {_target_: mock}\nstep_scheduler: {num_epochs: 2", more,
                                           "}\nlr_scheduler: {lr_warmup_steps: 9}"),
                                       "r.yaml", {}, RecipeUse::data);
    CHECK_THROWS_WITH(make_schedule(recipe, 8), by_data.c_str());
  }
  CHECK_THROWS_WITH(
      make_schedule(
          recipe_of("step_scheduler: {max_steps: 20}\nlr_scheduler: {lr_warmup_steps: 9, lr_decay_steps: "
                    "9}"),
          20),
      "r.yaml: lr_scheduler.lr_warmup_steps = 9: want 0 or more and less than lr_decay_steps = 9");
}

TEST_CASE("a schedule that a checkpoint gives its length to says so where it contradicts the recipe") {
  const Recipe recipe = recipe_of("step_scheduler: {max_steps: 20}\nlr_scheduler: {lr_warmup_steps: 9}");
  CHECK_THROWS_WITH(
      make_schedule(recipe, 8, LengthFrom::checkpoint),
      "r.yaml: lr_scheduler.lr_warmup_steps = 9: want 0 or more and less than lr_decay_steps = 8 "
      "(lr_decay_steps is absent, so the schedule of the checkpoint goes on, which is for 8 steps)");
}

TEST_CASE("defaults come from the run and the optimizer") {
  const std::string head = "step_scheduler: {max_steps: 5}\noptimizer: {lr: 2e-3, weight_decay: 0.3}\n";
  const auto options = [&](std::int64_t total) {
    return make_schedule(recipe_of(head + "lr_scheduler: {}"), total).options();
  };
  CHECK(options(50).warmup == 5);
  CHECK(options(9).warmup == 0);
  CHECK(options(100'000).warmup == 1000);
  CHECK(options(50).decay == 50);
  CHECK(options(50).wd_incr == 50);
  CHECK(options(50).init_lr == 0.1 * 2e-3);
  CHECK(options(50).max_lr == 2e-3);
  CHECK(options(50).min_lr == 0.01 * 2e-3);
  CHECK(options(50).start_wd == 0.3);
  CHECK(options(50).end_wd == 0.3);
  const LrSchedule constant = make_schedule(recipe_of(head), 50);
  for (const std::int64_t n : {0, 1, 49, 50, 1000}) {
    CHECK(constant.lr(n) == 2e-3);
    CHECK(constant.weight_decay(n) == 0.3);
  }
}

TEST_CASE("a schedule prints as tab-separated rows that read back exactly") {
  const std::string yaml =
      "step_scheduler: {max_steps: 20}\noptimizer: {lr: 0.004, weight_decay: 0.1}\n"
      "lr_scheduler: {lr_warmup_steps: 4, init_lr: 4e-4, min_lr: 2e-4}\n";
  std::istringstream in(printed(yaml));
  const LrSchedule schedule = make_schedule(recipe_of(yaml), 20);
  std::string line;
  for (std::int64_t n = 0; n <= 20; ++n) {
    REQUIRE(std::getline(in, line));
    const auto first = line.find('\t'), second = line.find('\t', first + 1);
    CHECK(line.substr(0, first) == std::to_string(n));
    CHECK(std::stod(line.substr(first + 1, second - first - 1)) == schedule.lr(n));
    CHECK(std::stod(line.substr(second + 1)) == schedule.weight_decay(n));
  }
  CHECK_FALSE(std::getline(in, line));
  CHECK(printed("step_scheduler: {max_steps: 2}\noptimizer: {lr: 1e-5}") ==
        "0\t1e-05\t0.01\n1\t1e-05\t0.01\n2\t1e-05\t0.01\n");
  CHECK(printed("step_scheduler: {max_steps: 2, global_batch_size: 4}\noptimizer: {lr: 8}\n"
                "lr_scheduler: {unit: samples, lr_decay_style: linear, min_lr: 0, lr_decay_steps: 8}") ==
        "0\t8\t0.01\n1\t4\t0.01\n2\t0\t0.01\n");
  Recipe no_end;
  no_end.file = "r.yaml";
  std::ostringstream out;
  CHECK_THROWS_WITH(print_schedule(out, no_end), doctest::Contains("step_scheduler.max_steps is missing"));
}
