#include "cli/render/follow_screen.h"

#include "cli/render/run_views.h"
#include "cli/render/table.h"
#include "common/base/text.h"

#include <algorithm>
#include <array>
#include <utility>

namespace nsa::render {

namespace {
constexpr double kPlainIntervalSeconds = 5, kRedrawIntervalSeconds = 0.05;
constexpr size_t kMaxLosses = 512;
constexpr int kBarWidth = 20;
constexpr size_t kTrendWidth = 10;
} // namespace

bool is_news(const wire::EventView& event) {
  // These events are bookkeeping between nsad, shim and ranks.
  using enum wire::EventKind;
  static constexpr std::array kQuiet = {kRankMemory,   kRankToggles,     kTimerFired,
                                        kShimReleased, kRunClosed,       kRankStarted,
                                        kRankExited,   kAttemptPrepared, kRankFinished};
  return event.severity != wire::Severity::kInfo ||
         std::find(kQuiet.begin(), kQuiet.end(), event.kind) == kQuiet.end();
}

std::string event_line(const wire::EventView& event, WallTime now, const Style& style, bool wide) {
  const bool bad = event.severity == wire::Severity::kError;
  const bool odd = event.severity == wire::Severity::kWarning;
  std::string mark = bad ? "!" : odd ? "!" : style.unicode ? "·" : "-";
  std::string text = event.text;
  if (bad) text = paint(text, Colour::kRed, style), mark = paint(mark, Colour::kRed, style);
  if (odd) text = paint(text, Colour::kYellow, style), mark = paint(mark, Colour::kYellow, style);
  std::string line = clock_time({event.at}, now) + " " + mark + " ";
  if (wide)
    line += "#" + std::to_string(event.sequence) + " " + event.kind.text() +
            (event.attempt > 0 ? " attempt " + std::to_string(event.attempt) : "") + ": ";
  return line + text;
}

FollowScreen::FollowScreen(std::ostream& out, ScreenOptions options, std::function<WallTime()> now)
    : out_(out), options_(std::move(options)), now_(std::move(now)) {}

void FollowScreen::line(const wire::FollowLine& line) {
  if (!line.summary.id.empty()) summary_ = line.summary;
  if (!summary_.inject.empty() && !std::exchange(options_.inject_said, true))
    print(paint("INJECT: a fault will be made on purpose: " + summary_.inject, Colour::kYellow,
                options_.style));
  if (line.type == wire::LineType::kEvent) event(line.event);
  if (line.type == wire::LineType::kStep) take_step(line);
  if (line.type == wire::LineType::kEnd) ended_ = true;
  if (summary_.state == wire::RunState::kRestarting && last_state_ != summary_.state &&
      failed_at_ == 0) {
    failed_at_ = now_().nanoseconds;
    failed_by_hang_ = false;
    failed_step_ = summary_.step;
    failed_attempt_ = summary_.attempt;
  }
  draw();
}

void FollowScreen::take_step(const wire::FollowLine& line) {
  if (!line.data.is_object()) return;
  const auto number = [&](const char* key, double otherwise) {
    const auto it = line.data.find(key);
    return it != line.data.end() && it->is_number() ? it->get<double>() : otherwise;
  };
  summary_.step = std::max(summary_.step, static_cast<uint64_t>(number("step", 0)));
  const double loss = number("loss", 0);
  if (line.data.contains("loss")) {
    summary_.loss = loss;
    summary_.has_loss = true;
    if (losses_seen_++ % losses_stride_ == 0) losses_.push_back(loss);
    if (losses_.size() > kMaxLosses) { // keeps every second value
      for (size_t i = 0; 2 * i < losses_.size(); ++i)
        losses_[i] = losses_[2 * i];
      losses_.resize((losses_.size() + 1) / 2);
      losses_stride_ *= 2;
    }
  }
  summary_.tokens_per_second = number("tokens_per_second", summary_.tokens_per_second);
}

void FollowScreen::event(const wire::EventView& event) {
  if (event.sequence <= last_sequence_) return;
  last_sequence_ = event.sequence;
  if (event.kind == wire::EventKind::kHangFound) {
    failed_at_ = event.at;
    failed_by_hang_ = true;
    failed_step_ =
        std::max(summary_.step,
                 event.detail.is_object() ? event.detail.value("step", uint64_t{0}) : uint64_t{0});
    failed_attempt_ = event.attempt;
  }
  // The daemon reports a recovery itself, with its cost.
  if (event.kind == wire::EventKind::kRecovered) {
    print_recovery(event, event.text);
    return;
  }
  if (is_news(event)) print(event_line(event, now_(), options_.style));
  if (event.kind != wire::EventKind::kFirstStep || failed_at_ == 0 ||
      event.attempt <= failed_attempt_)
    return;
  const uint64_t step = event.detail.is_object() ? event.detail.value("step", uint64_t{0}) : 0;
  steps_again_ = step > 0 && failed_step_ >= step ? failed_step_ - step + 1 : 0;
  // The daemon reports a hang's recovery, measured from when progress stopped.
  if (!failed_by_hang_)
    print_recovery(event, "recovered " +
                              format_duration(to_seconds(Duration(event.at - failed_at_))) +
                              " after the failure");
  failed_at_ = 0;
}

void FollowScreen::print_recovery(const wire::EventView& event, std::string text) {
  if (steps_again_ > 0) text += "; " + std::to_string(steps_again_) + " steps are computed again";
  steps_again_ = 0;
  print(clock_time({event.at}, now_()) + " " +
        paint((options_.style.unicode ? "✔ " : "+ ") + text, Colour::kGreen, options_.style));
}

void FollowScreen::replay(const std::vector<wire::EventView>& events) {
  for (const wire::EventView& each : events)
    event(each);
  draw();
}

void FollowScreen::note(const std::string& text) {
  print(text);
  draw();
}

void FollowScreen::print(const std::string& text) {
  if (drawn_) out_ << (width() < drawn_width_ ? "\n" : "\r\033[K");
  drawn_ = false;
  out_ << text << "\n";
  if (!options_.is_terminal) out_.flush();
}

std::string FollowScreen::status() const {
  const Style& style = options_.style;
  std::string text = state_mark(summary_.state, style);
  if (summary_.state == wire::RunState::kQueued ||
      (!summary_.reason.empty() && summary_.state != wire::RunState::kRunning))
    text += ": " + reason_of(summary_, now_());
  if (summary_.steps > 0) {
    const double share = static_cast<double>(summary_.step) / static_cast<double>(summary_.steps);
    text += "  step " + format_ratio(summary_.step, summary_.steps);
    if (options_.is_terminal) text += " " + bar(share, kBarWidth, style);
    text += " " + std::to_string(static_cast<int>(share * 100)) + "%";
  }
  if (summary_.has_loss) text += "  loss " + format_loss(summary_.loss);
  if (options_.is_terminal) {
    const auto& trend = losses_.size() > 1 ? losses_ : summary_.loss_trend;
    if (trend.size() > 1) text += " " + sparkline(trend, kTrendWidth, style);
  }
  if (summary_.has_heldout_loss) text += "  held-out " + format_loss(summary_.heldout_loss);
  if (summary_.tokens_per_second > 0 && !is_ended(summary_.state))
    text += "  " + format_count(summary_.tokens_per_second) + " tok/s";
  if (summary_.eta_seconds > 0 && !is_ended(summary_.state))
    text += "  ETA " + format_duration(summary_.eta_seconds);
  if (summary_.attempt > 1) text += "  attempt " + std::to_string(summary_.attempt);
  return text;
}

void FollowScreen::draw_status(WallTime now) {
  // Steps may take a millisecond, so not every step is drawn. tick() draws the last one.
  const bool early = to_seconds(now - last_status_) < kRedrawIntervalSeconds;
  if (drawn_ && early && summary_.state == last_state_) return;
  const int columns = width();
  std::string text = elide(status(), columns > 0 ? columns - 1 : 0, options_.style.unicode);
  last_state_ = summary_.state;
  last_status_ = now;
  // If the terminal has become narrower, it may have wrapped the drawn status. That text stays, and
  // the status continues on a new line.
  if (drawn_ && columns < drawn_width_) {
    out_ << "\n";
    drawn_ = false;
  }
  if (drawn_ && text == drawn_text_) return;
  out_ << "\r\033[K" << text;
  out_.flush();
  drawn_ = true;
  drawn_width_ = columns;
  drawn_text_ = std::move(text);
}

void FollowScreen::draw() {
  if (summary_.state.empty()) return;
  const WallTime now = now_();
  if (options_.is_terminal) return draw_status(now);
  const bool due = to_seconds(now - last_status_) >= kPlainIntervalSeconds;
  if (!due && summary_.state == last_state_) return;
  last_state_ = summary_.state;
  last_status_ = now;
  print(clock_time(now, now) + " " + status());
}

void FollowScreen::tick() {
  if (!options_.is_terminal) return;
  last_status_ = {}; // makes the next draw due
  draw();
}

void FollowScreen::finish() {
  tick();
  if (!drawn_) return;
  out_ << "\n";
  out_.flush();
  drawn_ = false;
}

} // namespace nsa::render
