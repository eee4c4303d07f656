// What `nsactl follow` shows: on a terminal one status line that is redrawn, with event lines above
// it; elsewhere plain lines, at most one status line in five seconds. No I/O but the stream, no
// clock but the one it is given.
#pragma once

#include "cli/render/text.h"
#include "common/wire/api_types.h"

#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace nsa::render {

struct ScreenOptions {
  Style style;
  bool is_terminal = false;
  std::function<int()> width; // columns now; none, or 0: do not cut
  bool inject_said = false;   // that a fault is made on purpose has been said before
};

class FollowScreen {
public:
  FollowScreen(std::ostream& out, ScreenOptions options, std::function<WallTime()> now);

  void line(const wire::FollowLine& line);
  // Stored events, for what happened before the stream began or while it was broken. Those that
  // have been shown are left out.
  void replay(const std::vector<wire::EventView>& events);
  void note(const std::string& text); // a line of nsactl's own
  void tick();                        // redraws; ages grow
  void finish();                      // leaves the last status as a line of its own

  bool ended() const { return ended_; }
  const wire::RunSummary& summary() const { return summary_; }
  int64_t last_sequence() const { return last_sequence_; }

private:
  void event(const wire::EventView& event);
  void print_recovery(const wire::EventView& event, std::string text);
  void print(const std::string& text); // above the status line
  void draw();
  void draw_status(WallTime now);
  int width() const { return options_.width ? options_.width() : 0; }
  std::string status() const;
  void take_step(const wire::FollowLine& line);

  std::ostream& out_;
  ScreenOptions options_;
  std::function<WallTime()> now_;
  wire::RunSummary summary_;
  std::vector<double> losses_; // thinned out as they grow
  size_t losses_stride_ = 1, losses_seen_ = 0;
  int64_t last_sequence_ = 0;
  bool drawn_ = false, ended_ = false;
  int drawn_width_ = 0; // of the terminal when the status was drawn
  WallTime last_status_;
  ChoiceOrText<wire::RunState> last_state_;
  std::string drawn_text_;
  // Of the newest failure, for the line that says how long recovery took.
  int64_t failed_at_ = 0;
  uint64_t failed_step_ = 0, steps_again_ = 0;
  bool failed_by_hang_ = false;
  AttemptNumber failed_attempt_ = 0;
};

// One event as a line: time, mark by severity, text. With `wide` also sequence, attempt and kind.
std::string event_line(const wire::EventView& event, WallTime now, const Style& style,
                       bool wide = false);
// Events that matter while watching; the rest is for `nsactl events`.
bool is_news(const wire::EventView& event);

} // namespace nsa::render
