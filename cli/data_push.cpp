// Implements `nsactl data push`, which copies a data set from the head to another node.
#include "cli/await_work.h"
#include "cli/json_text.h"
#include "common/base/text.h"
#include "common/net/http.h"

namespace nsa::cli {

namespace {

std::string describe(const wire::DataPush& push, bool unicode) {
  if (push.total_bytes == 0) return "reading the data set";
  const double part = static_cast<double>(push.here_bytes) / static_cast<double>(push.total_bytes);
  return bar(part, unicode) + " of " + format_bytes(push.total_bytes);
}

std::string sentence_of(const wire::DataPush& push) {
  std::string text =
      "node " + push.node + " has " + push.path + ", " + format_bytes(push.total_bytes) + ": ";
  if (push.fetched_bytes == 0) return text + "it was there already, and every byte is right";
  text += format_bytes(push.fetched_bytes) + " came in " + format_duration(push.seconds);
  if (push.damaged > 0)
    text += "; damaged, so fetched once more: " + std::to_string(push.damaged) + " of its files";
  return text;
}

Result<Exit> run_data_push(const Arguments& arguments, Context& context) {
  const std::string target = "/v1/nodes/" + net::encode_component(arguments.text("NODE")) + "/data";
  std::filesystem::path folder =
      std::filesystem::absolute(arguments.text("FOLDER")).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY(daemon.post(target, wire::DataPushRequest{folder.string()}));
  const auto text = [&](const wire::DataPush& now) { return describe(now, context.io.unicode); };
  NSA_TRY_ASSIGN(const auto push, await_work<wire::DataPush>(daemon, target, context, text));
  if (push.state == wire::WorkState::kFailed)
    return fail(ErrorCode::kUnavailable, push.problem, push.next);
  if (context.output == Output::kJson)
    context.io.out << json_text(nlohmann::json(push)) << "\n";
  else
    context.io.out << printable(sentence_of(push)) << "\n";
  return Exit::kDone;
}

} // namespace

Verb data_push_verb() {
  Verb verb;
  verb.name = "data push";
  verb.summary = "Copy a data set from this head to another node";
  verb.detail =
      "The node keeps it under the same path and checks the checksum of every file. If the "
      "connection breaks, the same command continues where it stopped. An existing copy is read "
      "completely, and its damaged files are sent again.";
  verb.positionals = {{"NODE", ValueType::kText, "name of a node, as nsactl node ls shows it"},
                      {"FOLDER", ValueType::kPath, "the data set"}};
  verb.examples = {{"nsactl data push bee data/mine", "before a run on several nodes"}};
  verb.run = run_data_push;
  return verb;
}

} // namespace nsa::cli
