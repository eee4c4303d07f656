// Ends processes that ranks have started and left behind. A subreaper becomes the parent of every
// orphan among its descendants, so no process that a rank forked can escape the shim. If the shim
// itself is lost, a mark in the environment identifies its processes. kill_descendants is for
// single-threaded callers that own all their children.
#pragma once

#include "common/base/result.h"

#include <set>
#include <string>
#include <sys/types.h>
#include <vector>

namespace nsa::proc {

// After this call, orphaned descendants become children of this process (PR_SET_CHILD_SUBREAPER).
Status become_subreaper();

// Living descendants of `ancestor`, except `spared` and their descendants; parents first.
std::vector<pid_t> descendants_of(pid_t ancestor, const std::set<pid_t>& spared = {});

// Makes one pass: sends SIGKILL to every living descendant of this process that is not spared.
// Returns how many were signalled; 0 means that none is left. Repeat it on each SIGCHLD, since a
// killed process may have forked meanwhile.
int kill_descendants(const std::set<pid_t>& spared);

// Sends SIGKILL to every process of this user whose initial environment held "NAME=value", until a
// pass finds no new one. Returns how many were killed. It does not find a program that clears its
// environment.
int kill_marked(const std::string& assignment);

} // namespace nsa::proc
