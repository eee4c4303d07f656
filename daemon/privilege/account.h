// Accounts of the host: who a uid is, whether it may be a submitter, and how a process becomes it.
// Lookups go through NSS and may block (LDAP); the starter makes them in its children only.
#pragma once

#include "common/base/result.h"

#include <string>
#include <sys/types.h>
#include <vector>

namespace nsa::privilege {

struct Account {
  uid_t uid = 0;
  gid_t gid = 0;
  std::string name, home;
  std::vector<gid_t> groups; // its own and the supplementary ones
};

// kNotFound: no such account, or group.
Result<Account> look_up_account(uid_t uid);
Result<Account> look_up_account(const std::string& name);
Result<gid_t> look_up_group(const std::string& name);

struct SubmitterRules {
  uid_t minimum_uid = 1000;
  gid_t group = 0; // that every submitter is a member of
  uid_t daemon = 0;
};
// kPermission names the rule that the account breaks. Pure.
Status check_submitter(const Account& account, const SubmitterRules& rules);

// This process, for good: groups, gid and uid change, and no capability is left. An error means
// that the process must end: it may have changed in part.
Status become(const Account& account);

} // namespace nsa::privilege
