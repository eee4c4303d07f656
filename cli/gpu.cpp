// Implements `gpu ls` and `gpu release`.
#include "cli/connect.h"
#include "cli/hints.h"
#include "cli/json_text.h"
#include "cli/parts.h"
#include "cli/render/table.h"
#include "cli/render/text.h"
#include "common/base/text.h"
#include "common/net/http.h"
#include "common/wire/gpu_view.h"

#include <algorithm>

namespace nsa::cli {

namespace {

std::string painted_state(const wire::GpuView& gpu, const render::Style& style) {
  if (gpu.state == wire::GpuStatus::kQuarantine)
    return render::paint(gpu.state.view(), render::Colour::kRed, style);
  if (gpu.state == wire::GpuStatus::kFree)
    return render::paint(gpu.state.view(), render::Colour::kGreen, style);
  return gpu.state.text();
}

std::string note_of(const wire::GpuView& gpu) {
  if (gpu.why.empty()) return "-";
  if (gpu.quarantined_by_run.empty()) return gpu.why;
  return gpu.why + " (run " + gpu.quarantined_by_run + ")";
}

std::string on_node(const wire::GpuView& gpu, const std::string& text) {
  return gpu.node.empty() ? text : gpu.node + "/" + text;
}
// Returns a name that `nsactl gpu release` accepts.
std::string name_of(const wire::GpuView& gpu) {
  return on_node(gpu, gpu.index < 0 ? gpu.uuid : std::to_string(gpu.index));
}

std::string table_of(const std::vector<wire::GpuView>& gpus, const Context& context) {
  const auto view = view_options(context);
  const WallTime now = WallTime::now();
  render::Table table({"GPU", "STATE", "RUN", "NAME", "MEMORY", "SINCE", "UUID", "NOTE"});
  for (const wire::GpuView& gpu : gpus)
    table.add({gpu.index < 0 ? on_node(gpu, "gone") : name_of(gpu), painted_state(gpu, view.style),
               gpu.run.empty() ? "-" : gpu.run, gpu.name.empty() ? "-" : gpu.name,
               gpu.memory_bytes == 0 ? "-" : format_bytes(gpu.memory_bytes),
               gpu.quarantined_at == 0 ? "-" : render::age({gpu.quarantined_at}, now), gpu.uuid,
               note_of(gpu)});
  table.right(4);
  return table.print(view.wide ? 0 : view.width, view.style.unicode);
}

// Prints what limits the list, because a user may miss a GPU here and look for it elsewhere.
void say_visible_devices(client::Daemon& daemon, Context& context) {
  if (context.quiet) return;
  const auto status = daemon.get("/v1/daemon");
  if (!status || !status->contains("cuda_visible_devices")) return;
  const auto& visible = (*status)["cuda_visible_devices"];
  if (visible.is_string())
    context.io.err << "nsad runs with CUDA_VISIBLE_DEVICES=" << visible.get<std::string>() << "\n";
}

Result<Exit> run_gpu_ls(const Arguments&, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const auto answer, daemon.get("/v1/gpus"));
  if (context.output == Output::kJson) {
    context.io.out << json_text(answer) << "\n";
    return Exit::kDone;
  }
  NSA_TRY_ASSIGN(const auto gpus, client::read_items<wire::GpuView>(answer));
  say_visible_devices(daemon, context);
  if (gpus.empty())
    context.io.err << "no node has a GPU that nsad uses\n";
  else
    context.io.out << table_of(gpus, context);
  for (const wire::GpuView& gpu : gpus)
    if (gpu.state == wire::GpuStatus::kQuarantine) {
      hint(context, {"when it is repaired: nsactl gpu release " + name_of(gpu)});
      break;
    }
  return Exit::kDone;
}

Result<Exit> run_gpu_release(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  const std::string gpu = arguments.text("GPU");
  NSA_TRY_ASSIGN(const auto answer,
                 daemon.post("/v1/gpus/" + net::encode_component(gpu) + "/release"));
  if (context.output == Output::kJson)
    context.io.out << json_text(answer) << "\n";
  else
    context.io.out << "GPU " << gpu << ": released from quarantine; runs may get it again\n";
  return Exit::kDone;
}

} // namespace

Verb gpu_ls_verb() {
  Verb verb;
  verb.name = "gpu ls";
  verb.summary = "List the GPUs of all nodes: free, used, in quarantine, kept out";
  verb.detail = "A GPU goes into quarantine when the driver reports broken hardware on it, or when "
                "two attempts in a row die there. No run gets it until you release it.";
  verb.examples = {{"nsactl gpu ls", "which GPUs can runs get?"},
                   {"nsactl gpu ls -o json", "for scripts"}};
  verb.run = run_gpu_ls;
  return verb;
}

Verb gpu_release_verb() {
  Verb verb;
  verb.name = "gpu release";
  verb.summary = "Release a GPU from quarantine";
  verb.detail = "Runs may get the GPU again. A run that continues on fewer GPUs climbs back at its "
                "next checkpoint, if restart.climb_after_steps is set.";
  verb.positionals = {{"GPU", ValueType::kText,
                       "index or UUID, as nsactl gpu ls shows them; of another node: bee/1"}};
  verb.examples = {{"nsactl gpu release 1", "it was reset or replaced"},
                   {"nsactl gpu release GPU-5fd4f087-86f3-7a43-b711-4771313afc50", "by its UUID"}};
  verb.run = run_gpu_release;
  return verb;
}

} // namespace nsa::cli
