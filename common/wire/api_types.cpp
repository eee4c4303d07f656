#include "common/wire/api_types.h"

namespace nsa::wire {

NSA_DEFINE_JSON(SubmitRequest, toml, file_name, folder, overrides, name, environment, dry_run)
NSA_DEFINE_JSON(ProblemView, file, line, column, key, what, next)
NSA_DEFINE_JSON(CandidateView, id, name, state, user, submitted_at)
NSA_DEFINE_JSON(ErrorView, code, what, next, problems, candidates)
NSA_DEFINE_JSON(SubmitReply, id, name, state, reason, warnings, exactness, job_text)
NSA_DEFINE_JSON(ResumeRequest, overrides, from_start, dry_run, from_step)
NSA_DEFINE_JSON(GateView, name, metric, over, action, bound, first_step, window_steps, state, value,
                from_step, to_step)
NSA_DEFINE_JSON(SetRequest, overrides)
NSA_DEFINE_JSON(NewestFigures, step, tokens, loss, heldout_loss, has_loss, has_heldout_loss,
                tokens_per_second, data_wait_ratio, exposed_communication_ratio)
NSA_DEFINE_JSON(RankView, rank, pid, state, phase, step, phase_age_seconds, step_seconds,
                exposed_communication_ratio, start_up_seconds, resident_bytes, allocated_bytes,
                reserved_bytes, peak_bytes, device, compute_precision, exit, gpu_uuid,
                last_progress_at)
NSA_DEFINE_JSON(AttemptView, attempt, state, reason, failure_class, first_step, last_step,
                started_at, ended_at, provenance)
NSA_DEFINE_JSON(ToggleView, attempt, name, requested, effective, origin)
NSA_DEFINE_JSON(CheckpointView, run, step, tokens, bytes, attempt, folder, state, problem, finite,
                written_at)
NSA_DEFINE_JSON(EventView, sequence, at, run, attempt, rank, kind, severity, text, detail)
NSA_DEFINE_JSON(AuditView, sequence, at, uid, pid, user, verb, run, owner, result, why)
NSA_DEFINE_JSON(DescendantView, id, name, from_step)
NSA_DEFINE_JSON(JobView, engine, job, state, reason, submitted_at)
NSA_DEFINE_JSON(RunDetail, summary, spec, estimate, came, mfu_of_token_rate, attempts, ranks,
                toggles, checkpoints, last_events, run_folder, hangs, descendants, job, figures)
NSA_DEFINE_JSON(FollowLine, type, summary, event, data)

} // namespace nsa::wire
