// A run as one page. Tests its contents, and that no text of a user or a rank becomes markup.
#include "cli/render/report.h"

#include <gmock/gmock.h>

namespace nsa::render {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Report, TellsAncestryLadderAndGatesAndMakesNoMarkupOfTexts) {
  Report report;
  report.detail.summary.id = "kaaaa";
  report.detail.summary.name = "a-run";
  wire::RunSummary& run = report.detail.summary;
  run.note = "<script>alert(1)</script> & \"quotes\"";
  run.from = "kbase@400";
  run.rung = "rung 1 of 2: smaller batches";
  run.gates = {
      {"loss-bound", "loss", "mean", "warn", "at most 3", 1, 20, wire::GateState::kFailed, 3.5, 21,
       40},
      {"later", "loss", "mean", "warn", "at most 2", 90, 20, wire::GateState::kWaiting, {}, 0, 0}};
  report.detail.descendants = {{"kchild", "fine-tuned", 600}};
  report.detail.spec = {{"train", {{"steps", 60}}}};
  const std::string page = report_html(report);
  for (const char* text :
       {"<td>weights from</td><td>kbase@400</td>", "fine-tuned (kchild) at step 600",
        "<td>ladder</td><td>rung 1 of 2: smaller batches</td>", "mean of loss: at most 3",
        "21 to 40", "from 90", "<td>train.steps</td>",
        "&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;quotes&quot;"})
    EXPECT_THAT(page, HasSubstr(text));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
}

} // namespace
} // namespace nsa::render
