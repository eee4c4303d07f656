#include "cli/model_program.h"

#include "common/base/file.h"
#include "common/base/unique_fd.h"
#include "common/spec/run_spec.h"
#include "common/wire/error_view.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace nsa::cli {

namespace {

constexpr const char* kProgram = "nsa-model";

// A program with a pipe to its standard input and one from its standard output. The destructor
// kills the program if it still runs.
class Child {
public:
  static Result<Child> start(const std::string& program) {
    Child child;
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0) return fail_errno("cannot make a pipe");
    child.in_.reset(in[1]);
    const UniqueFd in_end(in[0]);
    if (::pipe2(out, O_CLOEXEC) != 0) return fail_errno("cannot make a pipe");
    child.out_.reset(out[0]);
    const UniqueFd out_end(out[1]);
    child.pid_ = ::fork();
    if (child.pid_ < 0) return fail_errno("cannot start " + program);
    if (child.pid_ == 0) {                // only calls that are safe between fork and exec
      ::prctl(PR_SET_PDEATHSIG, SIGKILL); // nobody would read its results
      ::signal(SIGPIPE, SIG_DFL);
      ::dup2(in_end.get(), STDIN_FILENO);
      ::dup2(out_end.get(), STDOUT_FILENO);
      ::execl(program.c_str(), program.c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
    return child;
  }
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), in_(std::move(other.in_)),
        out_(std::move(other.out_)) {}
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    (void)wait();
  }

  void write_and_close(const std::string& text) {
    // If the request is incomplete, the program reports it.
    (void)write_all(in_.get(), text.data(), text.size());
    in_.reset();
  }
  int out() const { return out_.get(); }
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }

private:
  Child() = default;
  pid_t pid_ = -1;
  UniqueFd in_, out_;
};

// Reads lines as they come. next() returns false at the end.
class Lines {
public:
  explicit Lines(int fd) : fd_(fd) {}
  bool next(std::string& line) {
    while (text_.find('\n') == std::string::npos) {
      char piece[4096];
      const ssize_t got = ::read(fd_, piece, sizeof piece);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      text_.append(piece, static_cast<size_t>(got));
    }
    const size_t end = text_.find('\n');
    line = text_.substr(0, end);
    text_.erase(0, end + 1);
    return true;
  }

private:
  int fd_;
  std::string text_;
};

tl::unexpected<Error> died(int status) {
  if (WIFSIGNALED(status))
    return fail(ErrorCode::kInternal,
                std::string(kProgram) + " was ended by signal " + std::to_string(WTERMSIG(status)));
  return fail(ErrorCode::kInternal, std::string(kProgram) + " ended with exit code " +
                                        std::to_string(WEXITSTATUS(status)) + " and no answer");
}

} // namespace

std::vector<Option> computing_options() {
  return {{"device",
           0,
           ValueType::kText,
           "DEVICE",
           "cpu (default), cuda or auto",
           false,
           {"cpu", "cuda", "auto"}},
          {"threads", 0, ValueType::kInteger, "N", "CPU threads (default: one a processor)"}};
}

Result<double> number_option(const Arguments& arguments, const std::string& name, double otherwise,
                             double least, double most) {
  if (!arguments.has(name)) return otherwise;
  const std::string text = arguments.text(name);
  double value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size() && value >= least &&
      value <= most)
    return value;
  char limits[64], usual[32];
  std::snprintf(limits, sizeof limits, "%g to %g", least, most);
  std::snprintf(usual, sizeof usual, "%g", otherwise);
  return fail(ErrorCode::kInvalidArgument,
              "--" + name + " takes a number from " + limits + ", not '" + text + "'",
              "leave --" + name + " out: it is " + usual + " then");
}

Result<wire::ModelRequest> make_request(const ChosenCheckpoint& chosen, wire::ModelTask task,
                                        const Arguments& arguments) {
  wire::ModelRequest request;
  request.task = task;
  request.checkpoint = chosen.view.folder;
  request.spec = chosen.detail.spec;
  request.device = arguments.text("device", request.device);
  const int64_t processors = std::max(1u, std::thread::hardware_concurrency());
  request.threads = arguments.integer("threads", processors);
  if (request.threads < 1 || request.threads > 1024)
    return fail(ErrorCode::kInvalidArgument, "--threads takes a number from 1 to 1024");
  if (auto whole = manifest::verify(chosen.view.folder, chosen.manifest); !whole) {
    Error error = std::move(whole).error().within("the checkpoint is not used");
    error.next = "take another step: nsactl ckpt ls " + chosen.detail.summary.id;
    return fail(std::move(error));
  }
  return request;
}

Result<wire::ModelEnd>
run_model_program(const Context& context, const wire::ModelRequest& request,
                  const std::function<void(const nlohmann::json&)>& on_line) {
  const std::string program = context.program_dir + "/" + kProgram;
  if (::access(program.c_str(), X_OK) != 0)
    return fail(
        ErrorCode::kUnavailable, program + " is not there, and computes with models",
        "install the programs of a build with LibTorch, or export the model: nsactl export");
  ::signal(SIGPIPE, SIG_IGN);
  NSA_TRY_ASSIGN(Child child, Child::start(program));
  child.write_and_close(nlohmann::json(request).dump());
  Lines lines(child.out());
  for (std::string line; lines.next(line);) {
    NSA_TRY_ASSIGN(const auto json, parse_json(line, std::string("an answer of ") + kProgram, {}));
    if (json.contains("error")) {
      NSA_TRY_ASSIGN(const auto view, client::read_as<wire::ErrorView>(json["error"]));
      return fail(wire::to_error(view));
    }
    if (json.contains("done")) return client::read_as<wire::ModelEnd>(json);
    on_line(json);
  }
  return died(child.wait());
}

} // namespace nsa::cli
