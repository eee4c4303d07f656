// Who may request what from the page's server. Pure: it maps a request to an answer or a permitted
// errand.
//
//   request ─▶ Host names loopback ─▶ Origin is this page ─▶ token, as a cookie ─▶ on the list
//                    421                     403                   401               404, 405
//
// The first visit carries the token in its URL. The server returns it as a cookie that scripts
// cannot read. The list of permitted requests is in request_filter.cpp; its actions need
// allow_actions.
#pragma once

#include "common/net/http.h"
#include "common/net/http_client.h"

#include <string>
#include <variant>

namespace nsa::ui {

struct FilterRules {
  std::string token;
  uint16_t port = 0; // port of this server; browsers share cookies among all ports of a host
  bool allow_actions = false;
};

struct PageFile {
  std::string name; // "app.js"
};
struct Forward {
  net::ClientRequest request; // request to nsad
};
struct HangEvidence { // what was saved of a run's hang
  std::string run;
  size_t hang = 0; // index of the hang in the run, from 0
};
struct Settings {}; // what this server permits, and the words of nsad's lists

using Errand = std::variant<net::Response, PageFile, Forward, HangEvidence, Settings>;

class RequestFilter {
public:
  explicit RequestFilter(FilterRules rules) : rules_(std::move(rules)) {}
  Errand judge(const net::Request& request) const;
  bool allows_actions() const { return rules_.allow_actions; }

private:
  bool has_cookie(const net::Request& request) const;
  net::Response welcome(const std::string& path) const;
  FilterRules rules_;
};

// The body is {"what", "next"}, as in nsad's errors.
net::Response refuse(int status, const std::string& what, const std::string& next = {});

} // namespace nsa::ui
