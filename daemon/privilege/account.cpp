#include "daemon/privilege/account.h"

#include <algorithm>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace nsa::privilege {

namespace {

constexpr int kMostGroups = 65536; // NGROUPS_MAX

Result<Account> account_of(const passwd& entry) {
  Account account{entry.pw_uid, entry.pw_gid, entry.pw_name, entry.pw_dir, {}};
  int count = 64;
  do {
    account.groups.resize(static_cast<size_t>(count));
  } while (::getgrouplist(entry.pw_name, entry.pw_gid, account.groups.data(), &count) < 0 &&
           count <= kMostGroups && static_cast<size_t>(count) > account.groups.size());
  if (count < 0 || count > kMostGroups)
    return fail(ErrorCode::kSystem, "the groups of " + account.name + " cannot be listed");
  account.groups.resize(static_cast<size_t>(count));
  return account;
}

Result<bool> has_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  if (::syscall(SYS_capget, &header, sets) != 0) return fail_errno("cannot read the capabilities");
  return std::any_of(std::begin(sets), std::end(sets),
                     [](const auto& set) { return (set.permitted | set.effective) != 0; });
}

} // namespace

Result<Account> look_up_account(uid_t uid) {
  errno = 0;
  const passwd* entry = ::getpwuid(uid);
  if (entry == nullptr)
    return fail(ErrorCode::kNotFound, "there is no account with uid " + std::to_string(uid));
  return account_of(*entry);
}

Result<Account> look_up_account(const std::string& name) {
  const passwd* entry = ::getpwnam(name.c_str());
  if (entry == nullptr) return fail(ErrorCode::kNotFound, "there is no account " + name);
  return account_of(*entry);
}

Result<gid_t> look_up_group(const std::string& name) {
  const group* entry = ::getgrnam(name.c_str());
  if (entry == nullptr) return fail(ErrorCode::kNotFound, "there is no group " + name);
  return entry->gr_gid;
}

Status check_submitter(const Account& account, const SubmitterRules& rules) {
  const auto refuse = [&](const std::string& why) {
    return fail(ErrorCode::kPermission, "the account " + account.name + " (uid " +
                                            std::to_string(account.uid) + ") " + why);
  };
  if (account.uid == 0) return refuse("is root, and nothing is started as root");
  if (account.uid == rules.daemon) return refuse("is the daemon's own");
  if (account.uid < rules.minimum_uid)
    return refuse("is below system.minimum_uid = " + std::to_string(rules.minimum_uid));
  if (account.gid == 0) return refuse("has the group of root");
  if (std::find(account.groups.begin(), account.groups.end(), rules.group) == account.groups.end())
    return refuse("is no member of the group of submitters");
  return {};
}

Status become(const Account& account) {
  if (::setgroups(account.groups.size(), account.groups.data()) != 0)
    return fail_errno("setgroups for " + account.name);
  if (::setresgid(account.gid, account.gid, account.gid) != 0)
    return fail_errno("setresgid for " + account.name);
  if (::setresuid(account.uid, account.uid, account.uid) != 0)
    return fail_errno("setresuid for " + account.name);
  uid_t real = 0, effective = 0, saved = 0;
  if (::getresuid(&real, &effective, &saved) != 0 || real != account.uid ||
      effective != account.uid || saved != account.uid)
    return fail(ErrorCode::kInternal, "the uid did not change to " + account.name);
  NSA_TRY_ASSIGN(const bool left, has_capabilities());
  if (left || ::setresuid(0, 0, 0) == 0)
    return fail(ErrorCode::kInternal, "root could not be given up for " + account.name);
  return {};
}

} // namespace nsa::privilege
