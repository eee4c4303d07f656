#include "cli/connect.h"
#include "cli/json_text.h"
#include "cli/parts.h"
#include "common/net/paths.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

namespace nsa::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kEventFolder = "tensorboard"; // in a run's folder

struct Curves {
  std::string run, name; // `name` is the folder's, which TensorBoard shows
  fs::path folder;       // folder with event files
};

// Returns a unique name for each run: the run's name, followed by the id if another run has that
// name.
std::string folder_name(const wire::RunSummary& run, std::set<std::string>& taken) {
  std::string name = run.name;
  for (char& c : name)
    if (c == '/') c = '-';
  if (name.empty() || name[0] == '.' || taken.contains(name)) name += "-" + run.id;
  taken.insert(name);
  return name;
}

// Quotes a text so that a shell reads it as one word. A plain path stays unchanged.
std::string shell_word(const std::string& text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '/' || c == '.' || c == '-' || c == '_';
  });
  if (plain) return text;
  std::string word = "'";
  for (const char c : text)
    word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

// Returns whether an earlier call made this link. Its target is a run's folder of event files,
// which may be gone.
bool is_own_link(const fs::path& path) {
  std::error_code error;
  const fs::path target = fs::read_symlink(path, error);
  return !error && target.is_absolute() && target.filename() == kEventFolder;
}

// Fills the folder with links to the runs. Removes the links of an earlier call, and refuses a
// folder with other files.
Status link_runs(const fs::path& folder, const std::vector<Curves>& runs) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    return fail(ErrorCode::kSystem,
                "cannot make the folder " + folder.string() + ": " + error.message(),
                "name another one: --out FOLDER");
  std::vector<fs::path> old;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!is_own_link(entry->path()))
      return fail(ErrorCode::kConflict,
                  folder.string() + " holds " + entry->path().filename().string() +
                      ", which is no link to a run",
                  "name an empty folder: --out FOLDER");
    old.push_back(entry->path());
  }
  for (const fs::path& link : old)
    if (!error) fs::remove(link, error);
  if (error)
    return fail(ErrorCode::kSystem,
                "cannot replace the links in " + folder.string() + ": " + error.message(),
                "name another one: --out FOLDER");
  for (const Curves& run : runs) {
    fs::create_directory_symlink(run.folder, folder / run.name, error);
    if (error)
      return fail(ErrorCode::kSystem,
                  "cannot link " + run.name + " in " + folder.string() + ": " + error.message(),
                  "name another folder: --out FOLDER");
  }
  return {};
}

Result<Exit> run_tensorboard(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  std::vector<Curves> runs;
  std::set<std::string> taken;
  for (const std::string& name : arguments.all("RUN")) {
    NSA_TRY_ASSIGN(const auto answer, daemon.get(client::run_target(name)));
    NSA_TRY_ASSIGN(const auto detail, client::read_as<wire::RunDetail>(answer));
    const fs::path folder = fs::path(detail.run_folder) / kEventFolder;
    std::error_code error;
    const bool there = fs::is_directory(folder, error);
    if (error == std::errc::permission_denied)
      return fail(ErrorCode::kPermission,
                  "this user may not read the folder of run " + detail.summary.id,
                  "ask " + detail.summary.user + ", or run it as root");
    if (!there)
      return fail(
          ErrorCode::kNotFound, "run " + detail.summary.id + " has no TensorBoard files yet",
          "they come with its first step, unless metrics.tensorboard = false; nsactl status " +
              detail.summary.id);
    runs.push_back({detail.summary.id, folder_name(detail.summary, taken), folder});
  }
  fs::path folder = arguments.text("out");
  if (folder.empty()) {
    NSA_TRY_ASSIGN(const auto paths, net::user_paths());
    folder = fs::path(paths.socket).parent_path() / "tensorboard";
  }
  std::error_code error;
  folder = fs::absolute(folder, error);
  NSA_TRY(link_runs(folder, runs));
  const std::string line = "tensorboard --logdir " + shell_word(folder.string());
  if (context.output == Output::kJson) {
    nlohmann::json items = nlohmann::json::array();
    for (const Curves& run : runs)
      items.push_back({{"id", run.run}, {"name", run.name}, {"folder", run.folder.string()}});
    context.io.out << json_text(nlohmann::json{
                          {"logdir", folder.string()}, {"command", line}, {"items", items}})
                   << "\n";
  } else {
    context.io.out << line << "\n";
  }
  return Exit::kDone;
}

} // namespace

Verb tensorboard_verb() {
  Verb verb;
  verb.name = "tensorboard";
  verb.summary = "Print the command that shows runs in TensorBoard, under their names";
  verb.detail =
      "Makes a folder of links, named as the runs are, to their event files. A later call "
      "replaces the links. TensorBoard itself comes from PyPI.";
  verb.positionals = {{"RUN", ValueType::kRun, "id, start of an id, name, or @last", true, true}};
  verb.options = {{"out", 0, ValueType::kPath, "FOLDER", "folder of the links, empty or of links"}};
  verb.examples = {{"nsactl tensorboard k3fm2 p446w", "two runs over each other"},
                   {"nsactl tensorboard @last --out curves", "links in a folder of your own"}};
  verb.run = run_tensorboard;
  return verb;
}

} // namespace nsa::cli
