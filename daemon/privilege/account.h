// Accounts of the host: who a uid is, whether it may be a submitter, and how a process becomes it.
// Lookups use NSS and may block (LDAP), so the starter makes them only in its children.
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
  std::vector<gid_t> groups; // the primary group and the supplementary ones
};

// Error: kNotFound if there is no such account or group.
Result<Account> look_up_account(uid_t uid);
Result<Account> look_up_account(const std::string& name);
Result<gid_t> look_up_group(const std::string& name);

struct SubmitterRules {
  uid_t minimum_uid = 1000;
  gid_t group = 0; // group of which every submitter must be a member
  uid_t daemon = 0;
};
// The error kPermission names the rule that the account breaks. Pure.
Status check_submitter(const Account& account, const SubmitterRules& rules);

// Changes groups, gid and uid of this process permanently, and drops all capabilities. After an
// error the process must end, because part of the change may have happened.
Status become(const Account& account);

} // namespace nsa::privilege
