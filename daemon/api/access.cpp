#include "daemon/api/access.h"

#include <algorithm>

namespace nsa::api {

bool may_connect(const net::Peer& peer, const AccessRules& rules) {
  if (!peer.is_local_user) return false;
  return rules.system_mode || peer.uid == 0 || peer.uid == rules.daemon_uid;
}

bool is_administrator(const net::Peer& peer, const AccessRules& rules) {
  if (!peer.is_local_user) return false;
  if (peer.uid == 0 || peer.uid == rules.daemon_uid) return true;
  if (!rules.system_mode || !rules.administrators) return false;
  return peer.gid == *rules.administrators || std::find(peer.groups.begin(), peer.groups.end(),
                                                        *rules.administrators) != peer.groups.end();
}

} // namespace nsa::api
