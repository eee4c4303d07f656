// Which user a run belongs to. Requests of other users are refused and audited. Processes with
// other uids ask over a real socket.
#include "daemon/api/access.h"

#include "common/net/http_client.h"
#include "tests/support/as_user.h"
#include "tests/support/fake_service.h"

namespace nsa::api {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using test::kAdministrators;
using test::kAlice;
using test::kBob;
using testing_support::FakeDaemon;

net::Peer peer_of(uint32_t uid, uint32_t gid = 0, std::vector<uint32_t> groups = {}) {
  return {true, uid, gid, 1, std::move(groups)};
}

TEST(Access, InUserModeOneUserIsServed) {
  const AccessRules rules{false, 1000, 50};
  EXPECT_TRUE(may_connect(peer_of(1000), rules));
  EXPECT_TRUE(may_connect(peer_of(0), rules));
  EXPECT_FALSE(may_connect(peer_of(1001, 50, {50}), rules)) << "whatever its groups";
  EXPECT_FALSE(may_connect(net::Peer{}, rules)) << "not a unix socket";
  EXPECT_TRUE(is_administrator(peer_of(1000), rules));
}

TEST(Access, InSystemModeTheGroupMakesAnAdministrator) {
  const AccessRules rules{true, 100, 50};
  EXPECT_TRUE(may_connect(peer_of(1001), rules)) << "the socket's mode has decided";
  EXPECT_FALSE(is_administrator(peer_of(1001, 7, {8, 9}), rules));
  EXPECT_TRUE(is_administrator(peer_of(1001, 7, {8, 50}), rules));
  EXPECT_TRUE(is_administrator(peer_of(1001, 50), rules));
  EXPECT_TRUE(is_administrator(peer_of(0), rules));
  EXPECT_FALSE(is_administrator(peer_of(1001, 7, {8}), {true, 100, std::nullopt}));
  EXPECT_FALSE(is_administrator(peer_of(1001, 0), {true, 100, std::nullopt})) << "no group is none";
}

TEST(Access, ARunOfNobodyIsTheAdministrators) {
  Caller caller;
  caller.uid = 7;
  EXPECT_TRUE(owns(caller, 7));
  EXPECT_FALSE(owns(caller, 8));
  EXPECT_FALSE(owns(caller, -1));
  caller.uid = static_cast<uint32_t>(-1);
  EXPECT_FALSE(owns(caller, -1)) << "an uid that reads as -1";
  caller.administrator = true;
  EXPECT_TRUE(owns(caller, -1));
}

// A system nsad with a run of Alice and a run of Bob.
class SystemMode : public testing::Test {
protected:
  void SetUp() override {
    if (!test::can_be_others()) GTEST_SKIP() << "needs root, to ask as other users";
    daemon.on_loop([&] {
      daemon.service.add_run("alice", "running").summary.note = "a secret plan";
      daemon.service.add_run("bobby", "running");
      daemon.service.owners = {{"alice", kAlice}, {"bobby", kBob}};
      return 0;
    });
  }
  // Returns status and body of the answer to a request of that user.
  std::pair<int, std::string> ask(uid_t uid, const std::string& method, const std::string& target,
                                  std::vector<gid_t> groups = {}) {
    int answer[2];
    EXPECT_EQ(::pipe(answer), 0);
    const pid_t child = test::start_as(
        uid,
        [&] {
          auto client = net::HttpClient::connect_unix(daemon.socket);
          if (!client) return 1;
          const auto response = client->send({method, target, {}, ""}, 60s);
          if (!response) return 2;
          const std::string text = std::to_string(response->status) + " " + response->body;
          return ::write(answer[1], text.data(), text.size()) < 0 ? 3 : 0;
        },
        std::move(groups));
    ::close(answer[1]);
    std::string text;
    char chunk[4096];
    for (ssize_t got; (got = ::read(answer[0], chunk, sizeof chunk)) > 0;)
      text.append(chunk, static_cast<size_t>(got));
    ::close(answer[0]);
    EXPECT_EQ(test::wait_for(child), 0);
    const size_t blank = text.find(' ');
    return {blank == std::string::npos ? 0 : std::stoi(text), text.substr(blank + 1)};
  }
  std::string audit() {
    return daemon.on_loop([&] {
      std::string list;
      for (const wire::AuditView& row : daemon.service.audited)
        list += std::to_string(row.uid) + " " + row.verb + " " + row.run + " " + row.result.text() +
                "\n";
      return list;
    });
  }

  FakeDaemon daemon{{}, {true, 0, kAdministrators}};
};

TEST_F(SystemMode, NobodyChangesAnothersRun) {
  const std::pair<const char*, const char*> attacks[] = {
      {"POST", "/v1/runs/bobby/stop"},       {"POST", "/v1/runs/bobby/cancel"},
      {"POST", "/v1/runs/bobby/resume"},     {"POST", "/v1/runs/bobby/checkpoint"},
      {"POST", "/v1/runs/bobby/set"},        {"DELETE", "/v1/runs/bobby"},
      {"POST", "/v1/runs/run-bobby/cancel"}, {"POST", "/v1/daemon/stop"}};
  for (const auto& [method, target] : attacks) {
    const auto [status, body] = ask(kAlice, method, target);
    EXPECT_EQ(status, 403) << target << ": " << body;
  }
  EXPECT_EQ(daemon.on_loop([&] { return daemon.service.runs.at("bobby").summary.state; }),
            wire::RunState::kRunning);
  EXPECT_FALSE(daemon.on_loop([&] { return daemon.service.shut_down_asked; }));
  const std::string uid = std::to_string(kAlice);
  std::string expected;
  for (const char* verb : {"stop", "cancel", "resume", "checkpoint", "set", "remove", "cancel"})
    expected += uid + " " + verb + " bobby refused\n";
  EXPECT_EQ(audit(), expected + uid + " daemon-stop  refused\n");
}

TEST_F(SystemMode, AdministratorsAloneChangeNodes) {
  daemon.on_loop(
      [&] { return daemon.nodes.add("ant", wire::NodeRole::kHead, wire::NodeStatus::kReady), 0; });
  EXPECT_EQ(ask(kAlice, "GET", "/v1/nodes").first, 200);
  EXPECT_EQ(ask(kAlice, "POST", "/v1/node-tokens").first, 403);
  EXPECT_EQ(ask(kAlice, "POST", "/v1/nodes/ant/drain").first, 403);
  EXPECT_EQ(ask(kAlice, "DELETE", "/v1/nodes/ant").first, 403);
  EXPECT_EQ(ask(kAlice, "GET", "/v1/gpus").first, 200);
  EXPECT_EQ(ask(kAlice, "POST", "/v1/gpus/1/release").first, 403);
  const std::string uid = std::to_string(kAlice);
  EXPECT_EQ(audit(), uid + " node-token  refused\n" + uid + " node-drain ant refused\n" + uid +
                         " node-remove ant refused\n" + uid + " gpu-release 1 refused\n");
  EXPECT_EQ(ask(kAlice, "POST", "/v1/node-tokens", {kAdministrators}).first, 200);
}

TEST_F(SystemMode, TheOwnerAnAdministratorAndRootMay) {
  EXPECT_EQ(ask(kBob, "POST", "/v1/runs/bobby/stop").first, 200);
  EXPECT_EQ(ask(kAlice, "POST", "/v1/runs/bobby/stop", {kAdministrators}).first, 200);
  EXPECT_EQ(ask(0, "POST", "/v1/runs/bobby/cancel").first, 200);
  EXPECT_EQ(ask(kAlice, "POST", "/v1/daemon/stop", {kAdministrators}).first, 200);
  EXPECT_EQ(audit(), std::to_string(kBob) + " stop bobby done\n" + std::to_string(kAlice) +
                         " stop bobby done\n0 cancel bobby done\n");
}

TEST_F(SystemMode, NobodyReadsAnothersRun) {
  for (const char* target :
       {"/v1/runs/alice", "/v1/runs/alice/events", "/v1/runs/alice/logs", "/v1/runs/alice/follow",
        "/v1/runs/alice/checkpoints", "/v1/runs/alice/spec", "/v1/events", "/v1/follow"}) {
    const auto [status, body] = ask(kBob, "GET", target);
    EXPECT_EQ(status, 403) << target << ": " << body;
    EXPECT_EQ(body.find("secret"), std::string::npos) << target;
  }
  for (const char* target : {"/v1/runs", "/v1/runs?rows"}) {
    const auto [status, body] = ask(kBob, "GET", target);
    EXPECT_EQ(status, 200);
    EXPECT_NE(body.find("run-alice"), std::string::npos) << "that it is there is no secret";
    EXPECT_EQ(body.find("secret"), std::string::npos) << body;
    EXPECT_NE(ask(kAlice, "GET", target).second.find("secret"), std::string::npos);
  }
  EXPECT_EQ(ask(kBob, "GET", "/v1/runs/alice", {kAdministrators}).first, 200);
}

TEST_F(SystemMode, TheAuditShowsAUserWhatConcernsIt) {
  (void)ask(kAlice, "POST", "/v1/runs/bobby/cancel");
  (void)ask(kAlice, "POST", "/v1/runs/alice/stop");
  const auto rows = [&](uid_t uid, std::vector<gid_t> groups = {}) {
    return json::parse(ask(uid, "GET", "/v1/audit", std::move(groups)).second)["items"].size();
  };
  EXPECT_EQ(rows(kAlice), 2u);
  EXPECT_EQ(rows(kBob), 1u) << "the attempt on its own run";
  EXPECT_EQ(rows(kBob, {kAdministrators}), 2u);
}

// ---- a name that fits several runs
// ---------------------------------------------------------------

class OneName : public testing::Test {
protected:
  void SetUp() override {
    daemon.on_loop([&] {
      for (const char* id : {"kaaaa", "kbbbb", "kcccc"}) {
        wire::RunSummary& run = daemon.service.add_run(id, "running").summary;
        run.name = "same";
        run.submitted_at = 1'700'000'000'000'000'000;
      }
      return 0;
    });
  }
  net::ClientResponse ask(const std::string& method, const std::string& target) {
    auto client = net::HttpClient::connect_unix(daemon.socket);
    const auto response = client->send({method, target, {}, ""}, 60s);
    EXPECT_TRUE(response) << response.error().what;
    return response.value_or(net::ClientResponse{});
  }
  FakeDaemon daemon;
};

TEST_F(OneName, IsRefusedForWhatChangesARun) {
  for (const auto& [method, target] :
       {std::pair("POST", "/v1/runs/same/stop"), std::pair("POST", "/v1/runs/same/cancel"),
        std::pair("POST", "/v1/runs/same/resume"), std::pair("POST", "/v1/runs/same/checkpoint"),
        std::pair("DELETE", "/v1/runs/same"), std::pair("GET", "/v1/runs/same?unique")}) {
    const auto answer = ask(method, target);
    EXPECT_EQ(answer.status, 409) << target;
    const json body = json::parse(answer.body);
    EXPECT_EQ(body["what"], "'same' is the name of 3 runs") << target;
    ASSERT_EQ(body["candidates"].size(), 3u) << target;
    EXPECT_EQ(body["candidates"][0]["id"], "kcccc") << "the newest first";
    EXPECT_EQ(body["candidates"][0]["state"], "running");
  }
  EXPECT_EQ(ask("POST", "/v1/runs/k/cancel").status, 409) << "the beginning of several ids";
  daemon.on_loop([&] {
    for (const auto& [id, detail] : daemon.service.runs)
      EXPECT_EQ(detail.summary.state, wire::RunState::kRunning) << id;
    EXPECT_EQ(daemon.service.audited.size(), 6u) << "refused, and audited";
    return 0;
  });
  EXPECT_EQ(ask("POST", "/v1/runs/kbbbb/cancel").status, 200) << "an id is one run";
}

TEST_F(OneName, ReadingTakesTheNewestAndSaysSo) {
  const auto answer = ask("GET", "/v1/runs/same");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(json::parse(answer.body)["summary"]["id"], "kcccc");
  EXPECT_EQ(answer.header.at("nsa-notice"), "3 runs have this name; this is the newest, kcccc");
  EXPECT_EQ(ask("GET", "/v1/runs/kbbbb").header.count("nsa-notice"), 0u);
  EXPECT_EQ(ask("GET", "/v1/runs/k").status, 409) << "which beginning is meant is not guessed";
}

} // namespace
} // namespace nsa::api
