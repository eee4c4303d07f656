#include "cli/client/interrupt.h"
#include "cli/connect.h"
#include "cli/json_text.h"
#include "cli/parts.h"
#include "cli/rank_stacks.h"
#include "cli/render/top_view.h"
#include "common/base/text.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

namespace nsa::cli {

namespace {

constexpr size_t kMostRuns = 32; // most live runs of one refresh
constexpr double kInterval = 1, kLeastInterval = 0.2;
constexpr const char* kKeys = "up/down select  s stacks  o sort  r reverse  / filter  q quit";

// Reads everything that the screen shows. nsad shows no ranks of other users' runs.
Result<render::Top> read_top(client::Daemon& daemon, const std::string& wanted) {
  NSA_TRY_ASSIGN(auto facts, daemon.get("/v1/daemon"));
  facts["socket"] = daemon.socket();
  std::vector<std::string> ids;
  size_t left_out = 0;
  if (!wanted.empty()) {
    ids = {wanted};
  } else {
    NSA_TRY_ASSIGN(const auto answer, daemon.get("/v1/runs?rows=false"));
    NSA_TRY_ASSIGN(const auto runs, client::read_items<wire::RunSummary>(answer));
    for (const wire::RunSummary& run : runs) {
      if (render::is_ended(run.state) || run.state == wire::RunState::kQueued) continue;
      if (ids.size() < kMostRuns)
        ids.push_back(run.id);
      else
        ++left_out;
    }
  }
  std::vector<wire::RunDetail> details;
  for (const std::string& id : ids) {
    const auto answer = daemon.get(client::run_target(id));
    if (!answer) {
      const ErrorCode code = answer.error().code;
      const bool passed_over =
          wanted.empty() && (code == ErrorCode::kPermission || code == ErrorCode::kNotFound);
      if (passed_over) continue; // another user's run, or just removed
      return fail(answer.error());
    }
    NSA_TRY_ASSIGN(auto detail, client::read_as<wire::RunDetail>(*answer));
    details.push_back(std::move(detail));
  }
  render::Top top = render::top_of(facts, details, WallTime::now());
  top.left_out = left_out;
  return top;
}

// Reads single keys without echo, and uses the terminal's alternate screen. The destructor restores
// the terminal.
class KeyTerminal {
public:
  explicit KeyTerminal(std::ostream& out) : out_(out) {
    ::tcgetattr(STDIN_FILENO, &before_);
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    out_ << "\033[?1049h\033[?25l" << std::flush;
  }
  ~KeyTerminal() {
    out_ << "\033[?25h\033[?1049l" << std::flush;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  KeyTerminal(const KeyTerminal&) = delete;
  KeyTerminal& operator=(const KeyTerminal&) = delete;

  static int height() {
    winsize size{};
    return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row : 24;
  }
  // Clears the rest of every line, so that nothing of the last screen remains. The last line has no
  // line break, because a break would scroll.
  void draw(std::string screen) {
    if (screen.ends_with('\n')) screen.pop_back();
    std::string text = "\033[H";
    for (const char c : screen)
      text += c == '\n' ? "\033[K\r\n" : std::string(1, c);
    out_ << text << "\033[K\033[J" << std::flush;
  }

private:
  std::ostream& out_;
  termios before_{};
};

enum class Key { kUp, kDown, kPageUp, kPageDown, kEscape, kEnter, kErase, kLetter };
struct Pressed {
  Key key = Key::kLetter;
  char letter = 0;
};

std::vector<Pressed> keys_of(std::string_view bytes) {
  static constexpr std::pair<std::string_view, Key> kSequences[] = {
      {"\033[A", Key::kUp},        {"\033[B", Key::kDown}, {"\033[5~", Key::kPageUp},
      {"\033[6~", Key::kPageDown}, {"\033OA", Key::kUp},   {"\033OB", Key::kDown}};
  std::vector<Pressed> keys;
  while (!bytes.empty()) {
    const auto found = std::find_if(std::begin(kSequences), std::end(kSequences),
                                    [&](const auto& s) { return bytes.starts_with(s.first); });
    if (found != std::end(kSequences)) {
      keys.push_back({found->second});
      bytes.remove_prefix(found->first.size());
      continue;
    }
    const char c = bytes.front();
    bytes.remove_prefix(1);
    const Key key = c == '\033'              ? Key::kEscape
                    : c == '\r' || c == '\n' ? Key::kEnter
                    : c == 127 || c == '\b'  ? Key::kErase
                                             : Key::kLetter;
    keys.push_back({key, c});
  }
  return keys;
}

class TopLoop {
public:
  TopLoop(Context& context, client::Daemon daemon, std::string run, render::TopOrder order,
          double interval)
      : context_(context), daemon_(std::move(daemon)), run_(std::move(run)),
        order_(std::move(order)), interval_(interval), terminal_(context.io.out) {}

  Result<Exit> run() {
    refresh();
    while (!done_ && context_.io.out.good()) {
      draw();
      pollfd ready[] = {{STDIN_FILENO, POLLIN, 0}, {interrupt_.fd(), POLLIN, 0}};
      const double wait = std::max(0.0, to_seconds(next_ - MonotonicTime::now()));
      ::poll(ready, 2, static_cast<int>(wait * 1000) + 1);
      if (ready[1].revents != 0) return Exit::kInterrupted;
      if (ready[0].revents != 0 && !read_keys()) break;
      if (MonotonicTime::now() >= next_) refresh();
    }
    return Exit::kDone;
  }

private:
  void refresh() {
    next_ = MonotonicTime::now() + from_seconds(interval_);
    auto top = read_top(daemon_, run_);
    trouble_ = top ? "" : top.error().what;
    if (top) top_ = std::move(*top);
    // nsad has exited, so this connects to the next one if it is there.
    if (!top && top.error().code != ErrorCode::kNotFound)
      if (auto again = connect(context_, false)) daemon_ = std::move(*again);
    arrange();
  }
  void arrange() {
    ranks_ = render::arrange(top_.ranks, order_);
    selected_ = std::clamp(selected_, 0, std::max(0, static_cast<int>(ranks_.size()) - 1));
  }
  render::TopScreen screen() const {
    return {{context_.io.colour, context_.io.unicode},
            context_.io.current_width ? context_.io.current_width() : 80,
            KeyTerminal::height(),
            selected_,
            kKeys};
  }
  void draw() {
    render::TopScreen now = screen();
    if (!stacks_.empty()) {
      now.footer = "up/down scroll  esc back";
      return terminal_.draw(render::page_of(stacks_, from_, now));
    }
    if (typing_) now.footer = "filter: " + order_.filter + "_";
    if (!trouble_.empty()) now.footer = "cannot ask nsad: " + trouble_;
    if (!note_.empty()) now.footer = note_;
    terminal_.draw(render::top_screen(top_, ranks_, order_, WallTime::now(), now));
  }

  bool read_keys() {
    char bytes[256];
    const ssize_t got = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (got <= 0) return false; // the terminal was closed
    note_.clear();
    for (const Pressed& pressed : keys_of({bytes, static_cast<size_t>(got)})) {
      if (!stacks_.empty())
        scroll(pressed);
      else if (typing_)
        type(pressed);
      else
        act(pressed);
    }
    return true;
  }
  void scroll(const Pressed& pressed) {
    const auto page = static_cast<size_t>(KeyTerminal::height() - 2);
    const char c = pressed.letter;
    if (pressed.key == Key::kUp || c == 'k') from_ -= std::min<size_t>(from_, 1);
    if (pressed.key == Key::kDown || c == 'j') ++from_;
    if (pressed.key == Key::kPageUp) from_ -= std::min(from_, page);
    if (pressed.key == Key::kPageDown || c == ' ') from_ += page;
    if (pressed.key == Key::kEscape || c == 'q' || c == 's') stacks_.clear();
  }
  void type(const Pressed& pressed) {
    if (pressed.key == Key::kLetter && static_cast<unsigned char>(pressed.letter) >= ' ')
      order_.filter += pressed.letter;
    if (pressed.key == Key::kErase && !order_.filter.empty()) order_.filter.pop_back();
    if (pressed.key == Key::kEscape) order_.filter.clear();
    if (pressed.key == Key::kEscape || pressed.key == Key::kEnter) typing_ = false;
    arrange();
  }
  void act(const Pressed& pressed) {
    const char c = pressed.letter;
    if (pressed.key == Key::kUp || c == 'k') --selected_;
    if (pressed.key == Key::kDown || c == 'j') ++selected_;
    if (c == 'q') done_ = true;
    if (c == 'r') order_.reversed = !order_.reversed;
    if (c == '/') typing_ = true;
    if (c == 'o') {
      const auto& keys = render::top_sort_keys();
      const auto at = std::find(keys.begin(), keys.end(), order_.sort);
      order_.sort = at == keys.end() || at + 1 == keys.end() ? keys.front() : *(at + 1);
    }
    arrange();
    if (c == 's' && !ranks_.empty()) show_stacks();
  }
  void show_stacks() {
    const render::TopRank& rank = ranks_[static_cast<size_t>(selected_)];
    render::TopScreen waiting = screen();
    waiting.footer = "taking stacks of rank " + std::to_string(rank.rank.rank) + " ...";
    terminal_.draw(render::top_screen(top_, ranks_, order_, WallTime::now(), waiting));
    auto text = take_rank_stacks(context_.program_dir, rank.rank.rank, rank.rank.pid);
    if (!text) {
      note_ = text.error().what;
      return;
    }
    stacks_ = std::move(*text);
    from_ = 0;
  }

  Context& context_;
  client::Daemon daemon_;
  std::string run_;
  render::TopOrder order_;
  double interval_;
  client::Interrupt interrupt_;
  KeyTerminal terminal_;
  MonotonicTime next_;
  render::Top top_;
  std::vector<render::TopRank> ranks_;
  int selected_ = 0;
  size_t from_ = 0; // first visible line of the stacks
  bool done_ = false, typing_ = false;
  std::string trouble_, note_, stacks_;
};

Result<Exit> print_stacks(Context& context, const render::Top& top, int64_t rank) {
  for (const render::TopRank& row : top.ranks) {
    if (row.rank.rank != rank) continue;
    NSA_TRY_ASSIGN(const std::string text,
                   take_rank_stacks(context.program_dir, row.rank.rank, row.rank.pid));
    context.io.out << text;
    return Exit::kDone;
  }
  return fail(ErrorCode::kNotFound, "there is no live rank " + std::to_string(rank),
              "see which are: nsactl top --once");
}

Result<Exit> run_top(const Arguments& arguments, Context& context) {
  const std::string run = arguments.text("RUN");
  if (arguments.has("stacks") && run.empty())
    return fail(ErrorCode::kInvalidArgument, "--stacks needs a run",
                "nsactl top @last --stacks " + arguments.text("stacks"));
  const double interval = arguments.seconds("interval", kInterval);
  if (interval < kLeastInterval)
    return fail(ErrorCode::kInvalidArgument, "--interval is at least 0.2s",
                "leave it out, or write --interval 1s");
  const render::TopOrder order{arguments.text("sort", "run"), arguments.has("reverse"),
                               arguments.text("filter")};
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  Io& io = context.io;
  const bool once = arguments.has("once") || arguments.has("stacks") ||
                    context.output == Output::kJson || !io.out_is_terminal || !io.in_is_terminal;
  if (!once) return TopLoop(context, std::move(daemon), run, order, interval).run();
  NSA_TRY_ASSIGN(const render::Top top, read_top(daemon, run));
  if (arguments.has("stacks")) return print_stacks(context, top, arguments.integer("stacks", 0));
  const auto arranged = render::arrange(top.ranks, order);
  if (context.output == Output::kJson)
    io.out << json_text(render::top_json(top, arranged)) << "\n";
  else
    io.out << render::top_screen(top, arranged, order, WallTime::now(),
                                 {{io.colour, io.unicode}, io.width, 0, -1, ""});
  return Exit::kDone;
}

} // namespace

Verb top_verb() {
  Verb verb;
  verb.name = "top";
  verb.summary = "Show live ranks and GPUs: phase, step, speed, memory, last progress";
  verb.detail = "On a terminal the screen is redrawn until q. Elsewhere, and with --once, it is "
                "printed once. TOK/S is a rank's share of its run's tokens a second. PROGRESS is "
                "the time since its progress page last moved.";
  verb.positionals = {run_argument()};
  verb.positionals[0].required = false;
  verb.positionals[0].meaning += " (default: all live runs)";
  verb.options = {
      {"once", 0, ValueType::kFlag, "", "print once, for scripts"},
      {"sort", 0, ValueType::kText, "KEY", "order of the ranks (default: run)", false,
       render::top_sort_keys()},
      {"reverse", 0, ValueType::kFlag, "", "the other way round"},
      {"filter", 0, ValueType::kText, "TEXT", "only ranks whose run, phase or device has it"},
      {"interval", 0, ValueType::kDuration, "TIME", "between two refreshes (default: 1s)"},
      {"stacks", 0, ValueType::kInteger, "RANK", "print the stacks of this rank of RUN, once"}};
  verb.examples = {
      {"nsactl top", "all ranks of this node"},
      {"nsactl top --once --sort progress -o json", "ranks without progress, for a script"},
      {"nsactl top @last --stacks 1", "what rank 1 is doing now"}};
  verb.run = run_top;
  return verb;
}

} // namespace nsa::cli
