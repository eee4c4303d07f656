#include "daemon/parts/data_pushes.h"

#include "common/base/log.h"
#include "daemon/parts/pushed_data.h"

namespace nsa::parts {

Result<wire::DataPush> DataPushes::start(const std::string& node, const std::string& path) {
  Pushing& pushing = pushing_[node];
  if (pushing.view.state == wire::WorkState::kRunning) {
    if (pushing.view.path == path) return pushing.view;
    return fail(ErrorCode::kConflict, pushing.view.path + " is on its way to node " + node,
                "wait for its end: nsactl data push " + node + " " + pushing.view.path);
  }
  pushing = {};
  pushing.view.node = node;
  pushing.view.path = path;
  pushing.view.state = wire::WorkState::kRunning;
  workers_.run(
      {"", "the data set " + path}, [path] { return describe_data(path); },
      [this, node](Result<Push> push) {
        Pushing& described = pushing_[node];
        if (described.view.state != wire::WorkState::kRunning) return; // the node was lost
        if (!push) return end(described, push.error());
        offer(node, std::move(*push));
      });
  return pushing.view;
}

void DataPushes::offer(const std::string& node, Push push) {
  Pushing& pushing = pushing_[node];
  pushing.view.digest = push.digest;
  pushing.view.total_bytes = transfer::total_bytes(push.files);
  OfferedFolder folder;
  folder.node = node;
  folder.folder = push.path;
  folder.files = push.files;
  folder.progress = [this, node](uint64_t here, uint64_t) {
    pushing_[node].view.here_bytes = here;
  };
  push.offer = pushing.offer = offers_.add(std::move(folder));
  if (auto sent = send_(node, frame_of(Message::kPush, push)); !sent) end(pushing, sent.error());
}

void DataPushes::end(Pushing& pushing, const Error& why) {
  if (pushing.offer != 0) offers_.remove(pushing.offer);
  pushing.offer = 0;
  pushing.view.state = wire::WorkState::kFailed;
  pushing.view.problem = why.what;
  pushing.view.next = why.next;
}

Result<wire::DataPush> DataPushes::last(const std::string& node) const {
  const auto found = pushing_.find(node);
  if (found != pushing_.end()) return found->second.view;
  return fail(ErrorCode::kNotFound, "no data set was copied to node " + node,
              "nsactl data push " + node + " FOLDER");
}

void DataPushes::take(const std::string& node, const wire::Frame& frame) {
  const auto pushed = cluster::read_frame<Pushed>(frame);
  const auto found = pushing_.find(node);
  if (!pushed || found == pushing_.end() || found->second.offer != pushed->offer) return;
  Pushing& pushing = found->second;
  if (!pushed->ok)
    return end(pushing,
               {ErrorCode::kUnavailable, "node " + node + ": " + pushed->what,
                pushed->next.empty() ? "nsactl data push " + node + " " + pushing.view.path +
                                           " continues where it stopped"
                                     : pushed->next});
  offers_.remove(std::exchange(pushing.offer, 0));
  pushing.view.state = wire::WorkState::kDone;
  pushing.view.here_bytes = pushing.view.total_bytes = pushed->received.bytes;
  pushing.view.fetched_bytes = pushed->received.fetched;
  pushing.view.damaged = pushed->received.damaged;
  pushing.view.seconds = pushed->received.seconds;
  log::info("parts", "a data set was copied",
            {{"node", node},
             {"path", pushing.view.path},
             {"bytes", std::to_string(pushed->received.fetched)}});
}

void DataPushes::on_lost(const std::string& node) {
  const auto found = pushing_.find(node);
  if (found == pushing_.end() || found->second.view.state != wire::WorkState::kRunning) return;
  end(found->second,
      {ErrorCode::kUnavailable, "node " + node + " is not heard any more",
       "nsactl data push " + node + " " + found->second.view.path + " continues where it stopped"});
}

} // namespace nsa::parts
