#include "daemon/parts/joint_attempt.h"

#include "common/base/log.h"
#include "common/base/text.h"
#include "common/wire/part_sequence.h"
#include "daemon/proc/node_readings.h"

#include <algorithm>

namespace nsa::parts {

using control::AttemptKey;

// A part; it is the listener of the part's supervisor.
struct JointAttempt::PartOf final : control::ShimListener {
  PartOf(JointAttempt& whole, size_t number, state::Part place)
      : whole(whole), number(number), place(std::move(place)) {}

  void on_event(const AttemptKey&, state::EventBody body, uint64_t sequence) override {
    whole.on_event(number, std::move(body), sequence);
  }
  void on_step(const AttemptKey& key, const wire::RankStep& step) override {
    whole.listener_.on_step(key, step);
  }
  void on_dealt_with(const AttemptKey& key, uint64_t sequence) override {
    whole.listener_.on_dealt_with(key, wire::sequence_of(number, sequence));
  }
  void on_connected(const AttemptKey& key) override { whole.listener_.on_connected(key); }
  void on_shim_ended(const AttemptKey&) override { whole.on_part_ended(number); }
  std::vector<control::RankGpu> gpus_of(const AttemptKey& key) override {
    return whole.listener_.gpus_of(key);
  }

  JointAttempt& whole;
  size_t number;
  state::Part place;
  bool ended = false; // ended after release()
  // `acknowledged` is what the ledger holds; `told` is the last number that the shim got.
  uint64_t acknowledged = 0, told = 0;
  std::unique_ptr<control::AttemptSupervisor> supervisor;
};

JointAttempt::JointAttempt(net::EventLoop& loop, control::ShimListener& listener,
                           control::Reach reach, RemoteNodes& nodes,
                           control::ShimConnectionOptions options)
    : listener_(listener), reach_(std::move(reach)), nodes_(nodes), options_(std::move(options)),
      own_node_(proc::host_name()), key_(options_.key),
      samples_(static_cast<size_t>(options_.ranks)), hangs_(listener_, reach_, options_),
      adopted_(options_.adopted), moved_at_(MonotonicTime::now()) {
  const std::vector<state::Part> places = state::parts_of(options_.slots, options_.ranks);
  const WallTime started = WallTime::now() + (options_.adopted ? -options_.age : Duration::zero());
  for (size_t number = 0; number < places.size(); ++number) {
    auto part = std::make_unique<PartOf>(*this, number, places[number]);
    const state::Part& place = part->place;
    control::ShimConnectionOptions one;
    one.key = options_.key;
    one.submitter = options_.submitter;
    one.folder = options_.folder;
    one.token = options_.token;
    one.ranks = place.ranks;
    one.first_rank = place.first_rank;
    one.whole = &hangs_;
    one.first_step = options_.first_step;
    one.hang = options_.hang;
    one.first_step_done = options_.first_step_done;
    one.adopted = options_.adopted;
    one.daemon_started = options_.daemon_started;
    one.quotas = options_.quotas;
    one.age = options_.age;
    one.acknowledged = number == 0 ? options_.acknowledged
                       : number - 1 < options_.parts_acknowledged.size()
                           ? wire::number_of_sequence(options_.parts_acknowledged[number - 1])
                           : 0;
    part->acknowledged = one.acknowledged;
    control::Reach reach_of_part = reach_;
    if (place.node.empty()) {
      one.shim = options_.shim;
      one.pidfd = std::move(options_.pidfd);
    } else {
      reach_of_part.host = std::make_shared<RemoteHost>(nodes_, place.node, key_);
      one.read_process = [this](Rank rank) { return nodes_.reading(key_, rank); };
      if (auto watch = nodes_.watch(place.node, key_, started)) one.pidfd = std::move(*watch);
    }
    part->supervisor = std::make_unique<control::AttemptSupervisor>(
        loop, *part, std::move(reach_of_part), std::move(one));
    parts_.push_back(std::move(part));
  }
}

JointAttempt::~JointAttempt() {
  for (const auto& part : parts_)
    if (!part->place.node.empty()) nodes_.forget(part->place.node, key_);
}

template <class Do> void JointAttempt::for_each(Do act) {
  for (const auto& part : parts_)
    act(*part->supervisor);
}

bool JointAttempt::caught_up() const {
  return std::ranges::all_of(parts_,
                             [](const auto& part) { return part->supervisor->caught_up(); });
}

size_t JointAttempt::part_of(Rank rank) const {
  for (const auto& part : parts_)
    if (rank < part->place.first_rank + part->place.ranks) return part->number;
  return 0;
}

// ---- requests ---------------------------------------------------------------------------------

void JointAttempt::start() {
  for_each([](auto& part) { part.start(); });
}
void JointAttempt::stop_ranks(bool checkpoint) {
  for_each([&](auto& part) { part.stop_ranks(checkpoint); });
}
void JointAttempt::kill_ranks(const std::string& reason) {
  for_each([&](auto& part) { part.kill_ranks(reason); });
}
// Rank 0 asks the others.
void JointAttempt::checkpoint_ranks() {
  parts_.front()->supervisor->checkpoint_ranks();
}
void JointAttempt::take_evidence(const std::string& id, double limit_seconds) {
  evidence_.reset();
  evidence_told_ = false;
  if (const auto& verdict = hangs_.verdict()) {
    std::vector<std::string> nodes;
    for (size_t part = 0; part < parts_.size(); ++part)
      nodes.push_back(name_of_node(part));
    evidence_.emplace(id, std::move(nodes), part_of(verdict->rank), MonotonicTime::now(),
                      from_seconds(limit_seconds));
  }
  for_each([&](auto& part) { part.take_evidence(id, limit_seconds); });
}
void JointAttempt::acknowledge(uint64_t sequence) {
  // A shim sends only a window of messages before it waits for an acknowledgement (shim/outbox.h).
  // This is a quarter of the window if each message has a kilobyte.
  constexpr uint64_t kMostUntold = 64;
  const size_t number = wire::part_of_sequence(sequence);
  if (number >= parts_.size()) return;
  PartOf& part = *parts_[number];
  part.acknowledged = wire::number_of_sequence(sequence);
  if (part.place.node.empty() || part.acknowledged - part.told >= kMostUntold) tell(part);
}

void JointAttempt::tell(PartOf& part) {
  part.told = part.acknowledged;
  part.supervisor->acknowledge(part.acknowledged);
}

// Tells the shims of other nodes that a head asks for their ranks, and acknowledges messages so
// that they forget them.
void JointAttempt::speak(MonotonicTime now) {
  constexpr Duration kShortest = std::chrono::seconds(1), kLongest = std::chrono::seconds(4);
  if (now - spoke_at_ < std::clamp(nodes_.orphan_limit() / 32, kShortest, kLongest)) return;
  spoke_at_ = now;
  for (const auto& part : parts_)
    if (!part->place.node.empty()) tell(*part);
}
void JointAttempt::release() {
  released_ = true;
  for_each([](auto& part) { part.release(); });
}
void JointAttempt::say_goodbye() {
  for_each([](auto& part) { part.say_goodbye(); });
}

// ---- events of the parts ----------------------------------------------------------------------

void JointAttempt::on_event(size_t part, state::EventBody body, uint64_t sequence) {
  const state::Part& place = parts_[part]->place;
  const std::string node = place.node.empty() ? "of the head" : place.node;
  if (const auto* lost = std::get_if<state::ShimLost>(&body)) {
    // The ranks of a lost node may end before other ranks have waited long enough to report the
    // node as lost.
    if (!place.node.empty() && !nodes_.is_ready(place.node)) lose(place.node, lost->why);
    return emit(state::PartLost{node, lost->why, place.first_rank, place.ranks});
  }
  if (std::holds_alternative<state::ShimAdopted>(body) && !std::exchange(adopted_, false)) return;
  if (auto* saved = std::get_if<state::EvidenceSaved>(&body))
    return on_evidence(part, std::move(*saved));
  if (auto* lost = std::get_if<state::MessagesLost>(&body)) {
    lost->first = wire::sequence_of(part, lost->first);
    lost->last = wire::sequence_of(part, lost->last);
  }
  if (auto* exited = std::get_if<wire::RankExited>(&body); exited && !place.node.empty())
    // The time orders deaths, so it must be by the head's clock.
    exited->monotonic_ns = nodes_.here(node, exited->monotonic_ns).nanoseconds;
  if (auto* failed = std::get_if<state::AttemptFailedToStart>(&body))
    failed->what = "node " + node + ": " + failed->what;
  listener_.on_event(key_, std::move(body), wire::sequence_of(part, sequence));
}

// Each node writes the stacks of its own ranks to its own disk.
void JointAttempt::on_evidence(size_t part, state::EvidenceSaved saved) {
  const MonotonicTime now = MonotonicTime::now();
  if (evidence_ && evidence_->add(part, std::move(saved), now)) tell_evidence(now);
}

void JointAttempt::tell_evidence(MonotonicTime now) {
  const auto is_heard = [this](size_t part) {
    const std::string& node = parts_[part]->place.node;
    return node.empty() || nodes_.is_ready(node);
  };
  if (!evidence_->is_due(now, is_heard)) return;
  if (!evidence_->was_told()) {
    if (!hangs_.verdict()) return; // the hang was withdrawn meanwhile
    told_ = {*hangs_.verdict(), samples_};
  }
  // A copy, because hangs_ forgets the verdict when the ranks have ended.
  const state::Verdict& verdict = told_.verdict;
  state::EvidenceSaved saved = evidence_->joined();
  if (saved.kind == state::HangKind::kUnknown) saved.kind = verdict.kind;
  const size_t culprit = part_of(verdict.rank);
  if (evidence_->has_culprit() && !parts_[culprit]->place.node.empty())
    saved.findings.push_back("its stacks are on node " + parts_[culprit]->place.node);
  // Writes what all nodes saw beside the stacks of the head's own ranks, if it has any.
  if (parts_.front()->place.node.empty())
    hangs_.write_verdict(verdict, saved, told_.samples, nodes_of_verdict());
  evidence_->note_told();
  // Without the culprit's evidence the state machine waits until its own limit. The evidence is
  // reported only once.
  if (evidence_->has_culprit() && !std::exchange(evidence_told_, true)) emit(std::move(saved));
}

const std::string& JointAttempt::name_of_node(size_t part) const {
  const std::string& node = parts_[part]->place.node;
  return node.empty() ? own_node_ : node;
}

nlohmann::json JointAttempt::nodes_of_verdict() {
  auto nodes = nlohmann::json::array();
  for (const auto& part : parts_) {
    const std::string& node = part->place.node;
    const NodeClock clock = node.empty() ? NodeClock{} : nodes_.clock_of(node);
    nodes.push_back({{"node", name_of_node(part->number)},
                     {"first_rank", part->place.first_rank},
                     {"ranks", part->place.ranks},
                     {"evidence", evidence_ ? evidence_->folder(part->number) : ""},
                     {"clock_offset_seconds", to_seconds(clock.offset)},
                     {"round_trip_seconds", to_seconds(clock.round_trip)}});
  }
  return nodes;
}

void JointAttempt::on_part_ended(size_t part) {
  parts_[part]->ended = true;
  const bool all = std::ranges::all_of(parts_, [](const auto& one) { return one->ended; });
  if (all && !std::exchange(ended_, true)) listener_.on_shim_ended(key_);
}

// ---- hangs and lost nodes ---------------------------------------------------------------------

void JointAttempt::observe(MonotonicTime now) {
  // About every second tick of nsad, because the work of the head grows with the ranks of all
  // nodes.
  constexpr Duration kPace = std::chrono::milliseconds(150);
  if (now - looked_at_ < kPace) return;
  looked_at_ = now;
  for_each([&](auto& part) { part.observe(now); });
  speak(now);
  if (evidence_ && !evidence_->was_told()) tell_evidence(now);
  if (released_) return;
  merge();
  if (!all_heard()) return look_for_lost_nodes(now);
  lost_nodes_.clear();
  if (!has_fresh_pages(now)) return;
  moved_at_ = now;
  if (std::ranges::all_of(parts_, [](const auto& part) { return part->supervisor->watching(); }))
    if (const auto verdict = hangs_.observe(samples_, now)) look_into_network(*verdict);
  // Patience with a node that does not answer.
  constexpr Duration kPatience = std::chrono::seconds(2);
  if (suspicion_ && now - suspicion_->since > kPatience) judge_network();
}

// After a link was cut, ranks look as if they made no progress.
bool JointAttempt::has_fresh_pages(MonotonicTime now) const {
  constexpr Duration kStale = std::chrono::seconds(1);
  return std::ranges::all_of(parts_, [&](const auto& part) {
    return part->place.node.empty() || now - nodes_.pages_at(part->place.node, key_) < kStale;
  });
}

void JointAttempt::merge() {
  for (const auto& part : parts_) {
    const auto first = static_cast<size_t>(part->place.first_rank);
    const bool heard = part->place.node.empty() || nodes_.is_ready(part->place.node);
    const auto& samples = part->supervisor->samples();
    for (size_t i = 0; i < samples.size(); ++i) {
      state::RankSample& here = samples_[first + i];
      if (heard && samples[i].has_moved_since(here)) moved_at_ = MonotonicTime::now();
      here.update(samples[i]);
    }
  }
}

bool JointAttempt::all_heard() const {
  return std::ranges::all_of(parts_, [&](const auto& part) {
    return part->place.node.empty() || nodes_.is_ready(part->place.node);
  });
}

// A link may be cut while the ranks train on; then ranks on the other nodes still move. A node
// counts as lost only if nothing moves on the other nodes either. Several nodes may be lost.
void JointAttempt::look_for_lost_nodes(MonotonicTime now) {
  progress::Phase phase = progress::Phase::kStartUp;
  bool first_step_done = false;
  for (const state::RankSample& sample : samples_) {
    if (sample.host) phase = sample.host->phase;
    first_step_done = first_step_done || sample.device.completed_step > 0;
  }
  const double limit = hangs_.limits().limit(phase, first_step_done);
  if (to_seconds(now - moved_at_) < limit) return;
  for (const auto& part : parts_)
    if (const std::string& node = part->place.node; !node.empty() && !nodes_.is_ready(node))
      lose(node, "it is not heard, and the ranks on other nodes have waited for " +
                     format_duration(to_seconds(now - moved_at_)));
    else
      lost_nodes_.erase(node);
}

void JointAttempt::lose(const std::string& node, const std::string& why) {
  if (lost_nodes_.insert(node).second) emit(state::NodeLost{node, why});
}

// A rank that waits for others may really wait for the network. So before it is blamed, all nodes
// report their ranks' TCP connections. A rank that is stopped or has skipped a collective is at
// fault in any case.
void JointAttempt::look_into_network(const state::Verdict& verdict) {
  using enum state::HangKind;
  suspicion_.reset();
  if (verdict.kind == kTraced || verdict.kind == kStopped || verdict.kind == kSkippedCollective)
    return hangs_.report(verdict, "on its node");
  suspicion_ = Suspicion{verdict, MonotonicTime::now(), parts_.size(), {}};
  const MonotonicTime since = suspicion_->since;
  for (const auto& part : parts_) {
    // A late answer must not count for the next suspicion.
    const auto done = [this, since, number = part->number,
                       alive = std::weak_ptr<bool>(alive_)](std::vector<RankLink> links) {
      if (!alive.expired() && suspicion_ && suspicion_->since == since)
        on_links(number, std::move(links));
    };
    if (!part->place.node.empty()) {
      nodes_.call(part->place.node, CallKind::kLinks, key_, nullptr,
                  [done](const Result<nlohmann::json>& answer) {
                    auto links = answer ? wire::body_as<std::vector<RankLink>>(*answer)
                                        : Result<std::vector<RankLink>>(fail(answer.error()));
                    done(links ? std::move(*links) : std::vector<RankLink>());
                  });
      continue;
    }
    std::vector<wire::RankIdentity> ranks;
    for (Rank rank = part->place.first_rank; rank < part->place.first_rank + part->place.ranks;
         ++rank)
      ranks.push_back({rank, samples_[static_cast<size_t>(rank)].pid, 0});
    reach_.calls.run(
        {"", "the connections of ranks"},
        [ranks]() -> Result<std::vector<RankLink>> { return read_links(ranks); },
        [done](Result<std::vector<RankLink>> links) {
          done(links ? std::move(*links) : std::vector<RankLink>());
        });
  }
}

void JointAttempt::on_links(size_t part, std::vector<RankLink> links) {
  if (!suspicion_) return;
  const std::string& node = parts_[part]->place.node;
  suspicion_->links.push_back({node.empty() ? own_node_ : node, std::move(links)});
  if (--suspicion_->waiting == 0) judge_network();
}

void JointAttempt::judge_network() {
  Suspicion suspicion = *std::exchange(suspicion_, std::nullopt);
  state::Verdict& verdict = suspicion.verdict;
  if (const auto fault = find_network_fault(suspicion.links)) {
    verdict.kind = state::HangKind::kNetwork;
    verdict.rank = fault->rank;
    verdict.nodes = fault->nodes;
    verdict.witnesses.insert(verdict.witnesses.begin(), fault->witnesses.begin(),
                             fault->witnesses.end());
  }
  hangs_.report(verdict, "");
}

} // namespace nsa::parts
