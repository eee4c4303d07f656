// The API over real sockets with a service in memory.
#include "common/base/file.h"
#include "common/net/http_client.h"
#include "tests/support/fake_service.h"

#include <fstream>

namespace nsa::api {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing_support::FakeDaemon;

struct Answer {
  int status = 0;
  json body;
  std::map<std::string, std::string> header;
};

Answer ask(FakeDaemon& daemon, const std::string& method, const std::string& target,
           const std::string& body = "",
           std::vector<std::pair<std::string, std::string>> header = {}) {
  auto client = net::HttpClient::connect_unix(daemon.socket);
  EXPECT_TRUE(client);
  const auto response = client->send({method, target, std::move(header), body}, 60s);
  EXPECT_TRUE(response) << response.error().what;
  if (!response) return {};
  return {response->status, json::parse(response->body, nullptr, false), response->header};
}

// Follows a stream on a separate thread. lines() waits for the given number of lines.
class Reader {
public:
  Reader(FakeDaemon& daemon, const std::string& target)
      : thread_([this, socket = daemon.socket, target] {
          auto client = net::HttpClient::connect_unix(socket);
          net::LineReader reader;
          reader.line = [this](std::string_view line) {
            const std::lock_guard lock(mutex_);
            lines_.push_back(json::parse(line));
            return true;
          };
          const auto end = client->send_streaming({"GET", target, {}, ""}, 60s, reader);
          status_ = end ? end->response.status : -1;
        }) {}
  ~Reader() {
    if (thread_.joinable()) thread_.join();
  }
  std::vector<json> wait_end() {
    thread_.join();
    return lines_;
  }
  bool wait_lines(size_t count) {
    for (int i = 0; i < 12'000; ++i) {
      {
        const std::lock_guard lock(mutex_);
        if (lines_.size() >= count) return true;
      }
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }
  int status() const { return status_; }

private:
  std::mutex mutex_;
  std::vector<json> lines_;
  std::atomic<int> status_ = 0;
  std::thread thread_;
};

TEST(Routes, SubmitListShowRemove) {
  FakeDaemon daemon;
  const json request = wire::SubmitRequest{"schema = 1", "run.toml", "/x", {"a=1"}, "n", {}};
  const Answer submitted = ask(daemon, "POST", "/v1/runs", request.dump());
  EXPECT_EQ(submitted.status, 200);
  EXPECT_EQ(submitted.body["id"], "kabcd");
  EXPECT_EQ(daemon.service.submitted.at(0).overrides, std::vector<std::string>{"a=1"});
  EXPECT_EQ(daemon.service.last_caller.uid, ::getuid());
  EXPECT_FALSE(daemon.service.last_caller.user.empty());
  EXPECT_EQ(ask(daemon, "GET", "/v1/runs").body["items"].size(), 1u);
  EXPECT_EQ(ask(daemon, "GET", "/v1/runs/kab").body["summary"]["name"], "n");
  const Answer removed = ask(daemon, "DELETE", "/v1/runs/kabcd");
  EXPECT_EQ(removed.status, 409);
  EXPECT_EQ(removed.body["code"], "conflict");
  EXPECT_EQ(removed.body["next"], "nsactl stop kabcd");
}

TEST(Routes, ARefusedRunFileCarriesAllItsProblems) {
  FakeDaemon daemon;
  const Answer refused =
      ask(daemon, "POST", "/v1/runs", json(wire::SubmitRequest{"broken"}).dump());
  EXPECT_EQ(refused.status, 400);
  ASSERT_EQ(refused.body["problems"].size(), 2u);
  EXPECT_EQ(refused.body["problems"][0]["line"], 14);
  EXPECT_TRUE(daemon.service.runs.empty());
}

TEST(Routes, BadBodiesAreTheCallersFault) {
  FakeDaemon daemon;
  for (const char* body : {"", "[]", "{", "{\"overrides\":7}"}) {
    const Answer refused = ask(daemon, "POST", "/v1/runs", body);
    EXPECT_EQ(refused.status, 400) << body;
    EXPECT_EQ(refused.body["code"], "invalid-argument") << body;
  }
  EXPECT_TRUE(daemon.service.submitted.empty());
}

TEST(Routes, UnknownRunsAndPathsAreNotFound) {
  FakeDaemon daemon;
  EXPECT_EQ(ask(daemon, "GET", "/v1/runs/zzzzz").status, 404);
  EXPECT_EQ(ask(daemon, "GET", "/v1/nothing").body["code"], "not-found");
  const Answer method = ask(daemon, "DELETE", "/v1/daemon");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.header.at("allow"), "GET");
}

TEST(Routes, NodesAreListedAndChanged) {
  FakeDaemon daemon;
  daemon.on_loop([&] {
    daemon.nodes.add("ant", wire::NodeRole::kHead, wire::NodeStatus::kReady);
    daemon.nodes.add("bee/1", wire::NodeRole::kAgent, wire::NodeStatus::kReady);
    return 0;
  });
  EXPECT_EQ(ask(daemon, "GET", "/v1/nodes").body.at("items").size(), 2u);
  EXPECT_EQ(ask(daemon, "GET", "/v1/nodes/bee%2F1").body.at("role"), "agent");
  EXPECT_EQ(ask(daemon, "GET", "/v1/nodes/cow").status, 404);
  EXPECT_EQ(ask(daemon, "POST", "/v1/nodes/ant/drain").body.at("state"), "drained");
  EXPECT_EQ(ask(daemon, "POST", "/v1/nodes/ant/undrain").body.at("state"), "ready");
  EXPECT_EQ(ask(daemon, "DELETE", "/v1/nodes/bee%2F1").body.at("state"), "removed");
  EXPECT_EQ(ask(daemon, "GET", "/v1/nodes").body.at("items").size(), 1u);
  EXPECT_EQ(ask(daemon, "GET", "/v1/nodes?all").body.at("items").size(), 2u);
  EXPECT_EQ(ask(daemon, "POST", "/v1/node-tokens").body.at("head"), "head:9465");
  EXPECT_EQ(ask(daemon, "GET", "/v1/node-tokens").status, 405);
}

TEST(Routes, OnlyTheOwnerAndRootMayCall) {
  FakeDaemon daemon;
  daemon.on_loop([&] {
    net::Request request;
    request.method = "GET";
    request.path = "/v1/runs";
    request.peer = {true, ::getuid() + 1, 0, 1, {}};
    EXPECT_EQ(daemon.routes->handle(request).status, 403);
    request.peer.uid = 0;
    EXPECT_EQ(daemon.routes->handle(request).status, 200);
    request.peer = {}; // not a unix socket
    EXPECT_EQ(daemon.routes->handle(request).status, 403);
    return 0;
  });
}

TEST(Routes, ANewerClientIsToldWhatToDoAndMayStopTheDaemon) {
  FakeDaemon daemon;
  const std::string newer = std::to_string(wire::kApiVersion + 1);
  const Answer refused = ask(daemon, "GET", "/v1/runs", "", {{"Nsa-Api", newer}});
  EXPECT_EQ(refused.status, 426);
  EXPECT_NE(refused.body["what"].get<std::string>().find("version " + newer), std::string::npos);
  EXPECT_EQ(ask(daemon, "GET", "/v1/runs", "", {{"Nsa-Api", "x"}}).status, 400);
  EXPECT_EQ(ask(daemon, "GET", "/v1/version", "", {{"Nsa-Api", newer}}).body["api"],
            wire::kApiVersion);
  EXPECT_EQ(ask(daemon, "POST", "/v1/daemon/stop", "", {{"Nsa-Api", newer}}).status, 200);
  EXPECT_TRUE(daemon.wait_until([&] { return daemon.service.shut_down_asked; }));
}

TEST(Routes, MutationsAnswerWithTheRun) {
  FakeDaemon daemon;
  daemon.on_loop([&] { return daemon.service.add_run("krun1", "running").summary.attempt; });
  EXPECT_EQ(ask(daemon, "POST", "/v1/runs/krun1/checkpoint").body["state"], "running");
  EXPECT_EQ(daemon.service.checkpoints_asked, 1);
  EXPECT_EQ(ask(daemon, "POST", "/v1/runs/krun1/stop").body["state"], "stopping");
  EXPECT_EQ(ask(daemon, "POST", "/v1/runs/krun1/cancel").body["state"], "cancelled");
  EXPECT_EQ(ask(daemon, "POST", "/v1/runs/krun1/resume", R"({"overrides":["train.steps=9"]})")
                .body["state"],
            "starting");
  EXPECT_EQ(daemon.service.resumed.at(0).overrides, std::vector<std::string>{"train.steps=9"});
  EXPECT_EQ(ask(daemon, "POST", "/v1/runs/krun1/resume").status, 200) << "no body: no overrides";
}

TEST(Routes, FollowEndsWithTheRun) {
  FakeDaemon daemon;
  daemon.on_loop([&] { return daemon.service.add_run("krun1", "running").summary.attempt; });
  Reader reader(daemon, "/v1/runs/krun1/follow");
  ASSERT_TRUE(reader.wait_lines(1));
  daemon.on_loop([&] {
    daemon.service.emit_event({0, 1, "krun1", 1, 0, "hang", "error", "rank 0 hangs", {}});
    daemon.service.emit_state("krun1", "completed", "end");
    return 0;
  });
  const auto lines = reader.wait_end();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["type"], "state");
  EXPECT_EQ(lines[1]["event"]["text"], "rank 0 hangs");
  EXPECT_EQ(lines[2]["type"], "end");
  EXPECT_TRUE(daemon.wait_until([&] { return daemon.service.followers.empty(); }));
}

TEST(Routes, FollowOfAnEndedRunEndsAtOnce) {
  FakeDaemon daemon;
  daemon.on_loop([&] { return daemon.service.add_run("krun1", "failed").summary.ended_at = 7; });
  Reader reader(daemon, "/v1/runs/krun1/follow");
  EXPECT_EQ(reader.wait_end().size(), 2u);
  EXPECT_TRUE(daemon.wait_until([&] { return daemon.service.followers.empty(); }));
}

TEST(Routes, AFollowerThatLeavesIsForgotten) {
  FakeDaemon daemon;
  daemon.on_loop([&] { return daemon.service.add_run("krun1", "running").summary.attempt; });
  {
    auto client = net::HttpClient::connect_unix(daemon.socket);
    net::LineReader reader;
    reader.line = [](std::string_view) { return false; };
    ASSERT_TRUE(client->send_streaming({"GET", "/v1/runs/krun1/follow", {}, ""}, 60s, reader));
  }
  EXPECT_TRUE(daemon.wait_until([&] { return daemon.service.followers.empty(); }));
}

TEST(Routes, FollowersOfALivingRunGoWithTheServer) {
  FakeDaemon daemon;
  daemon.on_loop([&] { return daemon.service.add_run("krun1", "running").summary.attempt; });
  Reader reader(daemon, "/v1/runs/krun1/logs?follow");
  Reader other(daemon, "/v1/follow");
  ASSERT_TRUE(daemon.wait_until([&] { return daemon.service.followers.size() == 2; }));
  daemon.on_loop([&] {
    daemon.server.reset();
    return 0;
  });
  EXPECT_TRUE(daemon.service.followers.empty());
  reader.wait_end();
  EXPECT_EQ(reader.status(), -1) << "a broken stream must not look like an ended one";
}

TEST(Routes, EventsAreReplayedThenFollowedWithoutDoubles) {
  FakeDaemon daemon;
  daemon.on_loop([&] {
    daemon.service.add_run("krun1", "running");
    daemon.service.emit_event({0, 1, "krun1", 1, -1, "started", "info", "one", {}});
    daemon.service.emit_event({0, 1, "kothr", 1, -1, "started", "info", "other", {}});
    daemon.service.emit_event({0, 1, "krun1", 1, -1, "step", "info", "two", {}});
    return 0;
  });
  EXPECT_EQ(ask(daemon, "GET", "/v1/runs/krun1/events").body["items"].size(), 2u);
  EXPECT_EQ(ask(daemon, "GET", "/v1/events?after=1").body["items"].size(), 2u);
  Reader reader(daemon, "/v1/runs/krun1/events?follow&after=1");
  ASSERT_TRUE(reader.wait_lines(1));
  daemon.on_loop([&] {
    wire::FollowLine again;
    again.type = wire::LineType::kEvent;
    again.event = daemon.service.stored_events[2]; // a repeated event
    daemon.service.emit(again);
    daemon.service.emit_event({0, 1, "krun1", 1, -1, "end", "info", "three", {}});
    daemon.service.emit_state("krun1", "completed", "end");
    return 0;
  });
  const auto lines = reader.wait_end();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["text"], "two");
  EXPECT_EQ(lines[1]["text"], "three");
}

TEST(Routes, AStoredHistoryLongerThanAPageIsFollowedWithoutAGap) {
  FakeDaemon daemon;
  daemon.on_loop([&] {
    daemon.service.add_run("krun1", "completed").summary.ended_at = 1;
    for (int i = 1; i <= 2500; ++i)
      daemon.service.emit_event({0, 1, "krun1", 1, -1, "x", "info", std::to_string(i), {}});
    return 0;
  });
  const auto all = Reader(daemon, "/v1/runs/krun1/events?follow").wait_end();
  ASSERT_EQ(all.size(), 2500u);
  for (size_t i = 0; i < all.size(); ++i)
    ASSERT_EQ(all[i]["sequence"], i + 1);
  const auto last = Reader(daemon, "/v1/runs/krun1/events?follow&tail=2").wait_end();
  ASSERT_EQ(last.size(), 2u);
  EXPECT_EQ(last[0]["text"], "2499");
  EXPECT_EQ(Reader(daemon, "/v1/runs/krun1/events?follow&tail=0").wait_end().size(), 0u);
  const json stored = ask(daemon, "GET", "/v1/runs/krun1/events?tail=3").body["items"];
  ASSERT_EQ(stored.size(), 3u);
  EXPECT_EQ(stored[0]["text"], "2498");
}

std::string log_line(int second, const std::string& text) {
  char time[64];
  std::snprintf(time, sizeof time, "2026-01-31T09:00:%02d.5Z stdout F ", second);
  return time + text + "\n";
}

TEST(Routes, LogsOfAllRanksTailAndSince) {
  FakeDaemon daemon;
  std::string first, second;
  for (int i = 0; i < 30; ++i)
    (i % 2 ? second : first) += log_line(i, "line " + std::to_string(i));
  std::ofstream(daemon.folder + "/r0.log") << first;
  std::ofstream(daemon.folder + "/r1.log") << second;
  daemon.on_loop([&] {
    daemon.service.add_run("krun1", "running");
    daemon.service.log_sources = {{1, 0, daemon.folder + "/r0.log", true},
                                  {1, 1, daemon.folder + "/r1.log", true}};
    return 0;
  });
  auto lines = Reader(daemon, "/v1/runs/krun1/logs").wait_end();
  ASSERT_EQ(lines.size(), 30u);
  EXPECT_EQ(lines[7]["text"], "line 7");
  EXPECT_EQ(lines[7]["rank"], 1);
  EXPECT_EQ(Reader(daemon, "/v1/runs/krun1/logs?rank=0").wait_end().size(), 15u);
  lines = Reader(daemon, "/v1/runs/krun1/logs?tail=4").wait_end();
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0]["text"], "line 26");
  lines = Reader(daemon, "/v1/runs/krun1/logs?since=2026-01-31T09:00:27.5Z").wait_end();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["text"], "line 27");
}

TEST(Routes, LogsAreFollowedIntoTheNextAttemptUntilTheEnd) {
  FakeDaemon daemon;
  std::ofstream(daemon.folder + "/a1.log") << log_line(1, "one \xff");
  daemon.on_loop([&] {
    daemon.service.add_run("krun1", "running");
    daemon.service.log_sources = {{1, 0, daemon.folder + "/a1.log", true}};
    return 0;
  });
  Reader reader(daemon, "/v1/runs/krun1/logs?follow");
  ASSERT_TRUE(reader.wait_lines(1));
  std::ofstream(daemon.folder + "/a1.log", std::ios::app) << log_line(2, "two");
  ASSERT_TRUE(reader.wait_lines(2));
  std::ofstream(daemon.folder + "/a2.log") << log_line(3, "three");
  daemon.on_loop([&] {
    daemon.service.log_sources.push_back({2, 0, daemon.folder + "/a2.log", true});
    daemon.service.emit_state("krun1", "running");
    return 0;
  });
  ASSERT_TRUE(reader.wait_lines(3));
  std::ofstream(daemon.folder + "/a2.log", std::ios::app) << log_line(4, "last");
  daemon.on_loop([&] {
    daemon.service.emit_state("krun1", "completed", "end");
    return 0;
  });
  const auto lines = reader.wait_end();
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[2]["attempt"], 2);
  EXPECT_EQ(lines[3]["text"], "last");
}

// A connection may be cut after any line of a followed log. A client that returns with the
// positions gets the remaining lines of every rank and attempt.
TEST(Routes, AFollowerOfLogsGoesOnFromItsPositions) {
  FakeDaemon daemon;
  std::ofstream(daemon.folder + "/r0.log") << log_line(1, "0a") << log_line(1, "0b");
  std::ofstream(daemon.folder + "/r1.log") << log_line(1, "1a") << log_line(3, "1b");
  std::ofstream(daemon.folder + "/second.log") << log_line(4, "0c");
  std::ofstream(daemon.folder + "/third.log") << log_line(5, "0d");
  daemon.on_loop([&] {
    daemon.service.add_run("krun1", "completed").summary.ended_at = 1;
    daemon.service.log_sources = {{1, 0, daemon.folder + "/r0.log", false},
                                  {1, 1, daemon.folder + "/r1.log", false}};
    return 0;
  });
  const auto lines = Reader(daemon, "/v1/runs/krun1/logs?follow&positions&tail=3").wait_end();
  ASSERT_EQ(lines.size(), 5u);
  daemon.on_loop([&] {
    daemon.service.log_sources.push_back({2, 0, daemon.folder + "/second.log", false});
    daemon.service.log_sources.push_back({3, 0, daemon.folder + "/third.log", true});
    return 0;
  });
  std::map<int, std::string> positions;
  for (size_t seen = 0; seen < lines.size(); ++seen) {
    const json& line = lines[seen];
    positions[line["rank"]] = line["position"];
    EXPECT_EQ(line["stream"] == "position", seen < 2) << seen;
    if (positions.size() < 2) continue;
    std::string expected, got;
    for (size_t k = seen + 1; k < lines.size(); ++k)
      expected += lines[k]["text"].get<std::string>() + " ";
    const auto rest =
        Reader(daemon, "/v1/runs/krun1/logs?follow&from=" + positions[0] + "," + positions[1])
            .wait_end();
    for (const json& each : rest)
      got += each["text"].get<std::string>() + " ";
    EXPECT_EQ(got, expected + "0c 0d ") << "cut off after line " << seen;
  }
}

TEST(Routes, ALogIsWaitedForOnlyWhenItIsFollowed) {
  FakeDaemon daemon;
  daemon.on_loop([&] { return daemon.service.add_run("krun1", "queued").summary.attempt; });
  const Answer refused = ask(daemon, "GET", "/v1/runs/krun1/logs");
  EXPECT_EQ(refused.status, 404);
  EXPECT_NE(refused.body["next"].get<std::string>().find("logs -f krun1"), std::string::npos);
  std::ofstream(daemon.folder + "/r0.log") << log_line(1, "at last");
  Reader reader(daemon, "/v1/runs/krun1/logs?follow");
  ASSERT_TRUE(daemon.wait_until([&] { return !daemon.service.followers.empty(); }));
  daemon.on_loop([&] {
    daemon.service.log_sources = {{1, 0, daemon.folder + "/r0.log", true}};
    daemon.service.emit_state("krun1", "running");
    daemon.service.emit_state("krun1", "completed", "end");
    return 0;
  });
  const auto lines = reader.wait_end();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["text"], "at last");
}

TEST(Routes, LargeLogsArriveWhole) {
  net::HttpLimits limits;
  limits.stream_queue_bytes = 1 << 20;
  FakeDaemon daemon(limits);
  {
    std::ofstream file(daemon.folder + "/r0.log");
    for (int i = 0; i < 20'000; ++i)
      file << log_line(i % 60, "line " + std::to_string(i) + std::string(60, '.'));
  }
  daemon.on_loop([&] {
    daemon.service.add_run("krun1", "running");
    daemon.service.log_sources = {{1, 0, daemon.folder + "/r0.log", true}};
    return 0;
  });
  const auto lines = Reader(daemon, "/v1/runs/krun1/logs").wait_end();
  ASSERT_EQ(lines.size(), 20'000u);
  EXPECT_EQ(lines.back()["text"].get<std::string>().substr(0, 10), "line 19999");
}

TEST(Routes, AskingForCheckpointsSaysWhetherToReadThem) {
  FakeDaemon daemon;
  daemon.on_loop([&] {
    wire::CheckpointView view;
    view.state = wire::CheckpointState::kUnverified;
    daemon.service.add_run("krun1", "running").checkpoints = {view};
    return 0;
  });
  const auto state = [&](const std::string& query) {
    return ask(daemon, "GET", "/v1/runs/krun1/checkpoints" + query).body["items"][0]["state"];
  };
  EXPECT_EQ(state(""), "unverified");
  EXPECT_EQ(state("?verify"), "verified");
}

TEST(Routes, ALongListComesInPagesAndIsOneText) {
  FakeDaemon daemon;
  daemon.on_loop([&] {
    for (const char* id : {"ka", "kb", "kc"})
      daemon.service.add_run(id, "running");
    return 0;
  });
  for (const std::string query : {"?all", "?all&rows"}) {
    const json list = ask(daemon, "GET", "/v1/runs" + query).body;
    ASSERT_TRUE(list.is_object()) << query;
    EXPECT_EQ(list["total"], 3) << query;
    EXPECT_EQ(list["items"].size(), 3u) << query;
  }
}

TEST(Routes, RowsAreTheListWithoutNames) {
  FakeDaemon daemon;
  daemon.on_loop([&] {
    wire::RunSummary& run = daemon.service.add_run("krun1", "running").summary;
    run.tags = {"a", "b"};
    run.loss_trend.assign(64, 1.23456789);
    run.has_loss = true;
    run.loss = 1.23456789;
    run.submitted_at = 1'769'868'000'000'000'123;
    daemon.service.add_run("krun2", "queued");
    return 0;
  });
  const json answer = ask(daemon, "GET", "/v1/runs?rows").body;
  ASSERT_EQ(answer["items"].size(), 2u);
  ASSERT_EQ(answer["columns"].size(), answer["items"][0].size());
  const auto runs = wire::read_rows(answer.dump());
  ASSERT_TRUE(runs) << runs.error().what;
  ASSERT_EQ(runs->size(), 2u);
  EXPECT_EQ(runs->at(1).id, "krun2");
  const wire::RunSummary* run = runs->data();
  EXPECT_EQ(run->id, "krun1");
  EXPECT_EQ(run->submitted_at, 1'769'868'000'000'000'123);
  EXPECT_EQ(run->tags, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(run->loss, 1.23456789);
  EXPECT_EQ(run->loss_trend, std::vector<double>(8, 1.235));
  // A summary's fields and a row's columns are the same list, except for their order and for gates.
  const json fields = wire::RunSummary{};
  EXPECT_EQ(fields.size(), wire::run_columns().size() + 1);
  for (const std::string& name : wire::run_columns())
    EXPECT_TRUE(fields.contains(name)) << name;
}

TEST(Routes, RequestsAreCountedByRoute) {
  FakeDaemon daemon;
  ask(daemon, "GET", "/v1/runs");
  ask(daemon, "GET", "/v1/runs/none");
  ask(daemon, "GET", "/x/y");
  daemon.on_loop([&] {
    const auto& requests = daemon.routes->counts();
    EXPECT_EQ(requests.at("/v1/runs").requests.at(200), 1u);
    EXPECT_EQ(requests.at("/v1/runs/{run}").requests.at(404), 1u);
    EXPECT_EQ(requests.at("invalid").requests.at(404), 1u);
    return 0;
  });
}

} // namespace
} // namespace nsa::api
