// Implements `nsactl demo`, which shows a whole training run on this machine.
#include "cli/demo/own_node.h"
#include "cli/demo/summary.h"
#include "cli/json_text.h"
#include "cli/render/plot.h"
#include "cli/verb.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/text.h"
#include "common/net/paths.h"

#include <random>

namespace nsa::cli {

namespace fs = std::filesystem;

namespace {

constexpr size_t kLongestFile = size_t{64} << 20;
constexpr int kPlotHeight = 14, kPlotWidth = 80;
constexpr const char* kPrompt = "A kind of";
// Half the layers of configs/quickstart.toml. The held-out loss falls below the bigram entropy from
// about step 100 on. The demo ends within two minutes on two slow cores.
constexpr const char* kLayers = "model.layers=2";
constexpr int64_t kDemoSteps = 160;

fs::path first_that_is(const std::vector<fs::path>& places) {
  std::error_code error;
  for (const fs::path& place : places)
    if (fs::exists(place, error)) return fs::canonical(place, error);
  return {};
}

// Finds the demo's text: the package's own, or else that of a checkout, whose programs are in
// build/<preset>/bin.
Result<fs::path> find_text(const Arguments& arguments, const Context& context) {
  const fs::path bin = context.program_dir;
  if (arguments.has("text")) return fs::absolute(arguments.text("text"));
  fs::path found = first_that_is({bin / "../share/nsad/demo/wordnet.txt.gz",
                                  bin / "../../../share/nsad/demo/wordnet.txt.gz",
                                  bin / "../../../.deps/text/gcide.txt.gz"});
  if (!found.empty()) return found;
  return fail(ErrorCode::kNotFound, "the demo's text is not beside " + bin.string(),
              "give English text of 2 MB or more: nsactl demo --text FILE (.txt or .txt.gz)");
}

Status check_programs(const Context& context) {
  std::error_code error;
  for (const char* program : {"nsad", "nsa-shim", "nsa-evidence", "nsa-worker", "nsa-model"})
    if (!fs::exists(fs::path(context.program_dir) / program, error))
      return fail(ErrorCode::kNotFound,
                  std::string(program) + " is not beside nsactl in " + context.program_dir,
                  "the trainer needs LibTorch 2.11: build with it, or install a package");
  return {};
}

Result<fs::path> folder_of(const Arguments& arguments) {
  if (arguments.has("state")) return fs::absolute(arguments.text("state"));
  NSA_TRY_ASSIGN(const net::NodePaths paths, net::user_paths());
  return fs::path(paths.state + "-demo");
}

Result<nlohmann::json> read_json(const fs::path& path) {
  NSA_TRY_ASSIGN(const std::string text, read_file(path, kLongestFile));
  return parse_json(text.substr(0, text.find("\n{")), path.string());
}

// Runs the steps of the demo on its node.
class Story {
public:
  Story(demo::OwnNode& node, const Arguments& arguments, Context& context)
      : node_(node), context_(context), json_(context.output == Output::kJson),
        out_(json_ ? context.io.err : context.io.out),
        streams_(json_ ? demo::Streams::kShownOnError : demo::Streams::kShown),
        seed_(arguments.has("seed") ? arguments.integer("seed", 0)
                                    : std::random_device{}() % 1'000'000),
        steps_(arguments.integer("steps", kDemoSteps)) {}

  Result<Exit> tell(const fs::path& text) {
    std::error_code error;
    fs::remove(summary_file(), error); // so that a summary file is always this demo's
    NSA_TRY(prepare(text));
    NSA_TRY(train());
    NSA_TRY(sample());
    return finish();
  }

private:
  fs::path summary_file() const { return node_.folder() / "summary.json"; }
  fs::path data() const { return node_.folder() / "data"; }
  void say(const std::string& text) {
    const bool bold = context_.io.colour && !json_;
    out_ << (bold ? "\x1b[1m==>\x1b[0m " : "==> ") << printable(text) << std::endl;
  }
  Status show(const std::vector<std::string>& words) {
    NSA_TRY_ASSIGN(const int code, node_.show(words, streams_));
    if (code == 0) return {};
    return fail(ErrorCode::kInternal,
                "nsactl " + words.front() + " ended with exit code " + std::to_string(code));
  }

  Status prepare(const fs::path& text) {
    say("real English text: " + text.string());
    NSA_TRY(show({"data", "prepare", "--tokenizer", "bytes", "--documents", "paragraph",
                  "--min-document-bytes", "4096", "--invalid-utf8", "replace", "--reuse", "--out",
                  data().string(), text.string()}));
    NSA_TRY_ASSIGN(material_.dataset, read_json(data() / "dataset.json"));
    char line[160];
    std::snprintf(line, sizeof line,
                  "unigram entropy %.3f, bigram entropy %.3f nats a byte: the held-out loss must "
                  "end below the second",
                  material_.dataset.value("unigram_entropy_nats", 0.0),
                  material_.dataset.value("bigram_entropy_nats", 0.0));
    say(line);
    return {};
  }

  Status train() {
    say("training; one rank will stall on purpose (seed " + std::to_string(seed_) +
        " draws which, when and how)");
    const fs::path run_file = node_.folder() / "quickstart.toml";
    NSA_TRY(write_file_atomic(run_file, demo::run_file(), 0644, Survives::kProcessCrash));
    std::vector<std::string> words = {"submit",
                                      run_file.string(),
                                      "--follow",
                                      "--set",
                                      "data.path=" + data().string(),
                                      "--set",
                                      "inject.kind=random",
                                      "--set",
                                      "inject.seed=" + std::to_string(seed_),
                                      "--set",
                                      kLayers,
                                      "--set",
                                      "train.steps=" + std::to_string(steps_)};
    NSA_TRY_ASSIGN(const int code, node_.show(words, streams_));
    NSA_TRY_ASSIGN(material_.run, node_.ask({"status", "@last"}));
    if (code == 0) return {};
    const auto& run = material_.run;
    return fail(ErrorCode::kInternal,
                "the run ended " + demo::at(run, "/summary/state").dump() + ": " +
                    demo::at(run, "/summary/reason").dump(),
                "its logs and evidence are in " + run_folder().string());
  }

  Status sample() {
    say("what the trained model writes after \"" + std::string(kPrompt) + "\"");
    NSA_TRY_ASSIGN(const auto answer,
                   node_.ask({"sample", "@last", "--prompt", kPrompt, "--tokens", "160",
                              "--temperature", "0.7", "--seed", std::to_string(seed_)}));
    material_.sample = answer.value("text", "");
    out_ << "\n" << kPrompt << printable(material_.sample, LineBreaks::kKeep) << "\n" << std::endl;
    return {};
  }

  Result<Exit> finish() {
    const fs::path run = run_folder();
    NSA_TRY_ASSIGN(const std::string metrics, read_file(run / "metrics.jsonl", kLongestFile));
    NSA_TRY_ASSIGN(const demo::Losses losses, demo::read_losses(metrics));
    material_.injected = read_json(run / "injected.json").value_or(nullptr);
    material_.seed = seed_;
    material_.seconds = to_seconds(MonotonicTime::now() - started_);
    const auto summary = demo::summarize(material_, losses);
    NSA_TRY(
        write_file_atomic(summary_file(), summary.dump(2) + "\n", 0644, Survives::kProcessCrash));
    draw(losses);
    const std::vector<std::string> broken = demo::broken_promises(summary);
    if (!broken.empty())
      return fail(ErrorCode::kInternal, join(broken, "; "),
                  "its summary is " + summary_file().string());
    out_ << "\n" << printable(demo::told(summary), LineBreaks::kKeep) << "\n";
    say("done in " + format_duration(material_.seconds) + "; summary in " +
        summary_file().string());
    if (json_) context_.io.out << json_text(summary, 2) << "\n";
    return Exit::kDone;
  }

  fs::path run_folder() const {
    const auto folder = demo::at(material_.run, "/run_folder");
    return folder.is_string() ? folder.get<std::string>() : std::string();
  }

  void draw(const demo::Losses& losses) {
    const std::vector<render::Curve> curves = {
        {"training loss", {losses.training.begin(), losses.training.end()}},
        {"held-out loss", {losses.heldout.begin(), losses.heldout.end()}}};
    const int width = context_.io.width > 0 ? context_.io.width : kPlotWidth;
    out_ << "\n"
         << render::plot_text(curves, {"step", "nats a byte"}, width, kPlotHeight,
                              {context_.io.colour && !json_, context_.io.unicode});
  }

  demo::OwnNode& node_;
  Context& context_;
  bool json_;
  std::ostream& out_;
  demo::Streams streams_;
  int64_t seed_, steps_;
  MonotonicTime started_ = MonotonicTime::now();
  demo::Material material_;
};

Result<Exit> run_demo(const Arguments& arguments, Context& context) {
  if (context.system || !context.socket.empty())
    return fail(ErrorCode::kInvalidArgument, "the demo has an nsad of its own",
                "leave --system and --socket out");
  if (arguments.integer("steps", kDemoSteps) < 1)
    return fail(ErrorCode::kInvalidArgument,
                "--steps takes 1 or more, not " + arguments.text("steps"),
                "leave --steps out: the demo trains 160 steps then");
  if (arguments.integer("seed", 0) < 0)
    return fail(ErrorCode::kInvalidArgument,
                "--seed takes 0 or more, not " + arguments.text("seed"),
                "leave --seed out: it is drawn then");
  NSA_TRY_ASSIGN(const fs::path folder, folder_of(arguments));
  const bool clean = arguments.has("clean");
  fs::path text;
  if (!clean) {
    NSA_TRY(check_programs(context));
    NSA_TRY_ASSIGN(text, find_text(arguments, context));
  } else if (!demo::is_of_a_demo(folder)) {
    return fail(ErrorCode::kNotFound,
                "no demo made " + folder.string() + ", so nothing there is removed",
                "name the demo's folder: nsactl demo --clean --state DIR");
  }
  demo::Signals signals;
  NSA_TRY_ASSIGN(demo::OwnNode node,
                 demo::OwnNode::make(folder, context.program_dir + "/nsactl", signals));
  node.end(); // ends what a killed demo left
  if (clean) {
    NSA_TRY(node.remove());
    context.io.out << "removed " << printable(folder.string()) << "\n";
    return Exit::kDone;
  }
  auto told = Story(node, arguments, context).tell(text);
  node.end();
  if (!signals.came()) return told;
  context.io.err << "interrupted: the demo has ended its run and its nsad\n";
  return Exit::kInterrupted;
}

} // namespace

Verb demo_verb() {
  Verb verb;
  verb.name = "demo";
  verb.summary = "Train a small model on this machine, with a stall on purpose";
  verb.detail =
      "Makes a data set of real text and trains a byte-level model on two ranks. One rank stalls: "
      "which, when and how are drawn. nsad finds it, saves the stacks and continues from the last "
      "checkpoint. At the end the model writes a line. The demo has a node of its own in one "
      "folder: your runs and your nsad are not touched. It ends its run and its nsad, also on "
      "Ctrl-C, and leaves the folder with data, run and summary.json. It fails if anything that "
      "it promises did not happen. Needs no network.";
  verb.options = {
      {"state", 0, ValueType::kPath, "DIR", "the demo's folder (default: ~/.local/state/nsa-demo)"},
      {"text", 0, ValueType::kPath, "FILE",
       "English text, .txt or .txt.gz, of 2 MB or more (default: what the package brings)"},
      {"seed", 0, ValueType::kInteger, "N", "of the stall and the text (default: drawn)"},
      {"steps", 0, ValueType::kInteger, "N",
       "train so many (default: 160); with few the loss does not get low enough"},
      {"clean", 0, ValueType::kFlag, "", "only end and remove what demos left in the folder"}};
  verb.examples = {
      {"nsactl demo", "less than two minutes on two cores"},
      {"nsactl demo --seed 7 -o json", "the same stall each time; the summary as JSON"},
      {"nsactl demo --clean", "remove what it left"}};
  verb.run = run_demo;
  return verb;
}

} // namespace nsa::cli
