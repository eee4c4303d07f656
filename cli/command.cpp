#include "cli/command.h"

#include "cli/columns.h"
#include "cli/help.h"
#include "cli/parser.h"
#include "cli/render/problems.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <sys/ioctl.h>
#include <unistd.h>

namespace nsa::cli {

namespace {

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value;
}

bool can_unicode() {
  for (const char* variable : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (!is_set(variable)) continue;
    const std::string value = std::getenv(variable);
    return value.find("UTF-8") != std::string::npos || value.find("utf8") != std::string::npos ||
           value.find("UTF8") != std::string::npos;
  }
  // The environment does not say. Containers and ssh often set no locale, but their terminals use
  // UTF-8.
  return true;
}

int report(const Error& error, std::ostream& err) {
  err << render::error_text(error);
  return static_cast<int>(exit_of(error.code));
}

// Reports output that could not be written, so that a full disk does not look like an empty answer.
int finish(std::ostream& out, std::ostream& err, int code) {
  errno = 0;
  if (out.flush()) return code;
  const std::string why = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
  return report({ErrorCode::kSystem, "cannot write the output" + why,
                 "look at where standard output goes: a full disk, or a closed pipe"},
                err);
}

int run_verb(const Parsed& parsed, Context& context) {
  auto done = parsed.verb->run(parsed.arguments, context);
  if (!done) {
    Error& error = done.error();
    if (error.next.empty() && error.code == ErrorCode::kInvalidArgument)
      error.next = "nsactl help " + parsed.verb->name;
    return report(error, context.io.err);
  }
  return finish(context.io.out, context.io.err, static_cast<int>(*done));
}

} // namespace

bool wants_colour(ColourWhen when, bool is_terminal) {
  if (when == ColourWhen::kAlways) return true;
  if (when == ColourWhen::kNever || is_set("NO_COLOR")) return false;
  if (is_set("CLICOLOR_FORCE")) return true;
  const char* terminal = std::getenv("TERM");
  return is_terminal && !(terminal && std::string_view(terminal) == "dumb");
}

int run_command(const std::vector<Verb>& verbs, const std::vector<std::string>& words,
                const Terminal& terminal) {
  const auto parsed = parse_command(verbs, words);
  if (!parsed) return report(parsed.error(), terminal.err);
  if (parsed->help) {
    const auto page = help_page(verbs, *parsed->help);
    if (!page) return report(page.error(), terminal.err);
    terminal.out << *page;
    return finish(terminal.out, terminal.err, 0);
  }
  for (const std::string& old : parsed->old_names)
    terminal.err << "warning: " << old << "\n";
  Io io{terminal.out, terminal.err, terminal.in};
  io.out_is_terminal = terminal.out_is_terminal;
  io.err_is_terminal = terminal.err_is_terminal;
  io.in_is_terminal = terminal.in_is_terminal;
  io.colour =
      wants_colour(parsed->globals.choice("color", ColourWhen::kAuto), terminal.out_is_terminal);
  io.unicode = can_unicode();
  const auto columns = [&terminal] {
    const int width = terminal.width ? terminal.width() : 0;
    return width > 0 ? width : 80;
  };
  io.width = terminal.out_is_terminal ? columns() : 0;
  if (terminal.out_is_terminal) io.current_width = columns;
  Context context{io};
  const Output asked = parsed->globals.choice("output", Output::kTable);
  const bool rewrites = asked == Output::kName || asked == Output::kYaml;
  context.output = rewrites ? Output::kJson : asked;
  context.quiet = parsed->globals.has("quiet");
  context.raw = parsed->globals.has("raw");
  context.system = parsed->globals.has("system");
  context.socket = parsed->globals.text("socket");
  context.may_start = !parsed->globals.has("no-start");
  context.program_dir = terminal.program_dir;
  if (!rewrites) return run_verb(*parsed, context);
  Rewriter rewriter(terminal.out, asked);
  std::ostream rewritten(&rewriter);
  Io as_json{rewritten, terminal.err, terminal.in};
  as_json.in_is_terminal = io.in_is_terminal;
  as_json.err_is_terminal = io.err_is_terminal;
  as_json.unicode = io.unicode;
  as_json.width = 0;
  Context inner{as_json,        context.output, context.quiet,     context.raw,
                context.system, context.socket, context.may_start, context.program_dir};
  const int code = run_verb(*parsed, inner);
  return rewriter.status() ? code : report(rewriter.status().error(), terminal.err);
}

int run_process(const std::vector<Verb>& verbs, int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  const auto width = [] {
    winsize size{};
    return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? int{size.ws_col} : 0;
  };
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const Terminal terminal{std::cout,
                          std::cerr,
                          std::cin,
                          ::isatty(STDOUT_FILENO) == 1,
                          ::isatty(STDERR_FILENO) == 1,
                          ::isatty(STDIN_FILENO) == 1,
                          width,
                          self.parent_path().string()};
  return run_command(verbs, {argv + 1, argv + argc}, terminal);
}

} // namespace nsa::cli
