// The screen of `nsactl follow`. On a terminal one status line is redrawn, with event lines above
// it. Elsewhere it prints plain lines, with at most one status line in five seconds. It uses only
// the given stream and clock.
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
  std::function<int()> width; // present columns; if null or 0, lines are not cut
  bool inject_said = false;   // an injected fault has been announced already
};

class FollowScreen {
public:
  FollowScreen(std::ostream& out, ScreenOptions options, std::function<WallTime()> now);

  void line(const wire::FollowLine& line);
  // Shows stored events from before the stream began or while it was broken. Leaves out those that
  // have been shown.
  void replay(const std::vector<wire::EventView>& events);
  void note(const std::string& text); // prints a message of nsactl
  void tick();                        // redraws, because ages grow
  void finish();                      // leaves the last status on a line of its own

  bool ended() const { return ended_; }
  const wire::RunSummary& summary() const { return summary_; }
  int64_t last_sequence() const { return last_sequence_; }

private:
  void event(const wire::EventView& event);
  void print_recovery(const wire::EventView& event, std::string text);
  void print(const std::string& text); // prints above the status line
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
  int drawn_width_ = 0; // width of the terminal when the status was drawn
  WallTime last_status_;
  ChoiceOrText<wire::RunState> last_state_;
  std::string drawn_text_;
  // Facts of the newest failure, for the line that reports how long the recovery took.
  int64_t failed_at_ = 0;
  uint64_t failed_step_ = 0, steps_again_ = 0;
  bool failed_by_hang_ = false;
  AttemptNumber failed_attempt_ = 0;
};

// Returns one event as a line: time, mark for the severity, text. With `wide` it also has sequence,
// attempt and kind.
std::string event_line(const wire::EventView& event, WallTime now, const Style& style,
                       bool wide = false);
// Returns whether the event matters while watching. `nsactl events` shows the others.
bool is_news(const wire::EventView& event);

} // namespace nsa::render
