#include "common/base/text.h"
#include "daemon/state/apply.h"
#include "daemon/state/policy.h"
#include "daemon/state/xid.h"

namespace nsa::state {

namespace {

std::string number(uint64_t n) {
  return std::to_string(n);
}
std::string rank_name(Rank rank) {
  return "rank " + std::to_string(rank);
}

Description info(std::string text) {
  return {Severity::kInfo, std::move(text)};
}
Description warning(std::string text) {
  return {Severity::kWarning, std::move(text)};
}
Description error(std::string text) {
  return {Severity::kError, std::move(text)};
}

Description of(const Submitted& e, AttemptNumber) {
  return info("submitted by " + e.user + ": " + number(static_cast<uint64_t>(e.ranks)) +
              (e.ranks == 1 ? " rank" : " ranks") + " on " + text_of(e.device));
}
Description of(const SlotsGranted& e, AttemptNumber) {
  return info("got " + join(e.slots, ", "));
}
Description of(const SlotsReleased&, AttemptNumber) {
  return info("its slots are free; it waits for others");
}
Description of(const GpuQuarantined& e, AttemptNumber) {
  return error("GPU " + e.uuid + " is in quarantine: " + e.why +
               "; no run gets it until nsactl gpu release");
}
Description of(const GpuReleased& e, AttemptNumber) {
  return info("GPU " + e.uuid + " was released from quarantine by " + e.by);
}
Description of(const CheckpointChosen& e, AttemptNumber attempt) {
  return info("attempt " + std::to_string(attempt) +
              (e.step == 0 ? " starts from scratch"
                           : " resumes from the verified checkpoint of step " + number(e.step)));
}
Description of(const AttemptPrepared&, AttemptNumber attempt) {
  return info("attempt " + std::to_string(attempt) + " is about to start");
}
Description of(const ShimStarted& e, AttemptNumber attempt) {
  return info("attempt " + std::to_string(attempt) + " started, its shim is pid " +
              std::to_string(e.pid));
}
Description of(const ShimAdopted& e, AttemptNumber attempt) {
  return info("attempt " + std::to_string(attempt) + " adopted " + format_duration(e.seconds) +
              " after nsad started; no rank was restarted");
}
Description of(const ShimLost& e, AttemptNumber) {
  return error("the ranks' parent (nsa-shim) is gone: " + e.why);
}
Description of(const NodeBack& e, AttemptNumber) {
  return info("node " + e.node + " is heard again");
}
Description of(const NodeLost& e, AttemptNumber) {
  return error("node " + e.node + " is lost: " + e.why);
}
Description of(const PartLost& e, AttemptNumber) {
  return error("the ranks on node " + e.node + " have ended: " + e.why);
}
Description of(const ShimReleased&, AttemptNumber attempt) {
  return info("the shim of attempt " + std::to_string(attempt) + " was released");
}
Description of(const AttemptFailedToStart& e, AttemptNumber attempt) {
  return error("attempt " + std::to_string(attempt) + " could not be started: " + e.what);
}
Description of(const HostOutOfMemory& e, AttemptNumber) {
  return error("the kernel killed " + number(e.kills) + " process(es) because memory ran out");
}
Description of(const GpuFault& e, AttemptNumber) {
  const XidMeaning meaning = xid_meaning(e.xid);
  const std::string text = "the driver reports Xid " + number(e.xid) + " (" + meaning.text +
                           ") on the GPU of " + rank_name(e.rank) + ", " + e.uuid;
  return meaning.hardware ? error(text) : warning(text);
}
Description of(const FirstStep& e, AttemptNumber attempt) {
  return info("attempt " + std::to_string(attempt) + " trains: step " + number(e.step) +
              " is done");
}
Description of(const HangFound& e, AttemptNumber) {
  return error((e.kind == HangKind::kNetwork ? "" : "hang: ") + hang_text(e) + ", found " +
               format_duration(e.detect_seconds) + " after progress stopped (" +
               join(e.witnesses, "; ") + ")");
}
Description of(const HangWithdrawn& e, AttemptNumber) {
  return warning("hang withdrawn: " + e.why);
}
Description of(const DebuggerAttached& e, AttemptNumber) {
  return warning(debugger_text(e) + "; no progress for " + format_duration(e.seconds) + " in " +
                 phase_text(e.phase) + " at step " + number(e.step));
}
Description of(const DebuggerGone& e, AttemptNumber) {
  return info(rank_name(e.rank) + " is released by its debugger and watched as before");
}
Description of(const SlowStep& e, AttemptNumber) {
  return warning(rank_name(e.rank) + " is slow in " + phase_text(e.phase) + " at step " +
                 number(e.step) + ": " + format_duration(e.seconds) + ", usual limit " +
                 format_duration(e.limit_seconds));
}
Description of(const EvidenceSaved& e, AttemptNumber) {
  if (!e.error.empty()) return warning("evidence is incomplete: " + e.error);
  return info("evidence saved in " + format_duration(e.seconds) + ": " + e.folder);
}
Description of(const GateJudged& e, AttemptNumber) {
  const std::string gate = "gate \"" + e.name + "\" ";
  if (e.passed) return info(gate + "passed: " + e.text);
  if (e.action == spec::GateAction::kWarn) return warning(gate + "failed: " + e.text);
  return error(
      gate + "failed: " + e.text +
      (e.action == spec::GateAction::kStop ? "; the run is stopped" : "; the run is paused"));
}
Description of(const TimerFired& e, AttemptNumber) {
  return info("the " + e.timer.text() + " time is over");
}
Description of(const StopRequested& e, AttemptNumber) {
  return info("stop requested by " + e.by + (e.checkpoint ? ", with a checkpoint" : ""));
}
Description of(const CancelRequested& e, AttemptNumber) {
  return info("cancelled by " + e.by);
}
Description of(const ResumeRequested& e, AttemptNumber) {
  return info("resumed by " + e.by +
              (e.from_step < 0 ? std::string()
                               : " from step " + number(static_cast<uint64_t>(e.from_step))) +
              (e.overrides.empty() ? std::string() : " with " + join(e.overrides, ", ")) +
              (e.exactness.empty() ? std::string() : "; " + e.exactness));
}
Description of(const RunClosed&, AttemptNumber) {
  return info("closed: summary written, slots free");
}
Description of(const wire::RankStarted& e, AttemptNumber) {
  return info(rank_name(e.rank) + " started, pid " + std::to_string(e.pid));
}
Description of(const wire::RankExited& e, AttemptNumber) {
  std::string text = rank_name(e.rank) + " ended with " + exit_text(e.exit_code, e.signal);
  if (e.killed_by_shim) text += ", killed by nsad";
  const bool well = e.exit_code == 0 || e.killed_by_shim;
  return {well ? Severity::kInfo : Severity::kError, text};
}
// Messages whose descriptor has a sentence. Those below need more than their members.
template <wire::DescribedMessage T> Description of(const T& e, AttemptNumber) {
  static_assert(!T::kMessage.text.empty(), "give the message a text, or a sentence here");
  return {T::kMessage.severity, wire::sentence_of(e)};
}
Description of(const wire::RankHello& e, AttemptNumber) {
  std::string text = rank_name(e.rank) + " on " + e.device + " computes in " + e.compute_precision;
  if (!e.precision_note.empty()) text += " (" + e.precision_note + ")";
  return info(text);
}
Description of(const wire::RankToggles& e, AttemptNumber) {
  return info(rank_name(e.rank) + " reported " + number(e.toggles.size()) + " toggles in effect");
}
Description of(const wire::RankCheckpoint& e, AttemptNumber) {
  if (!e.error.empty()) return error("no checkpoint at step " + number(e.step) + ": " + e.error);
  return info("checkpoint of step " + number(e.step) + ", " + format_bytes(e.bytes) +
              ", written in " + format_duration(e.write_seconds));
}
Description of(const wire::RankMemory& e, AttemptNumber) {
  std::string text = rank_name(e.rank) + " memory after " + e.stage + ": " +
                     format_bytes(e.resident_bytes) + " resident";
  if (e.allocated_bytes != 0)
    text += ", " + format_bytes(e.allocated_bytes) + " allocated on the device, peak " +
            format_bytes(e.peak_bytes);
  return info(text);
}
Description of(const wire::RankError& e, AttemptNumber) {
  return error(rank_name(e.rank) + ": " + e.what + (e.next.empty() ? "" : "; " + e.next));
}
Description of(const wire::Refused& e, AttemptNumber) {
  return warning(number(e.count) + " " + e.what + " of " + rank_name(e.rank) +
                 " were not taken: " + e.why);
}
Description of(const MessagesLost& e, AttemptNumber) {
  return warning("messages " + number(e.first) + " to " + number(e.last) +
                 " of the shim were lost with the ledger; where its ranks are, it has said again");
}
Description of(const RunRecovered& e, AttemptNumber attempt) {
  return warning("the ledger did not know attempt " + std::to_string(attempt) + "; its shim (pid " +
                 std::to_string(e.shim_pid) + ") lives, so the run was recovered from its files");
}
Description of(const wire::LogDropped& e, AttemptNumber) {
  return warning(number(e.bytes) + " bytes of the log of " + rank_name(e.rank) +
                 " were dropped: " + e.why);
}

} // namespace

std::string debugger_text(const DebuggerAttached& e) {
  return "a debugger (pid " + std::to_string(e.pid) + ", " + e.name + ") is attached to " +
         rank_name(e.rank) + "; observed only";
}

std::string hang_text(const HangFinding& hang) {
  const std::string what = hang.kind == HangKind::kNetwork
                               ? "the network between " + hang.nodes + " carries no data,"
                               : rank_name(hang.rank) + " " + text_of(hang.kind);
  return what + " in " + phase_text(hang.phase) + " at step " + number(hang.step);
}

Description describe(const Event& event) {
  return std::visit([&](const auto& body) { return of(body, event.attempt); }, event.body);
}

} // namespace nsa::state
