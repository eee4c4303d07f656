// The routes for GPUs, over real sockets, with nodes in memory.
#include "common/net/http_client.h"
#include "tests/support/fake_service.h"

namespace nsa::api {
namespace {

using testing_support::FakeDaemon;

struct GpuAnswer {
  int status = 0;
  nlohmann::json body;
};

GpuAnswer ask_for_gpus(FakeDaemon& daemon, const std::string& method, const std::string& target) {
  auto client = net::HttpClient::connect_unix(daemon.socket);
  EXPECT_TRUE(client);
  const auto response = client->send({method, target, {}, ""}, std::chrono::seconds(60));
  EXPECT_TRUE(response) << response.error().what;
  if (!response) return {};
  return {response->status, nlohmann::json::parse(response->body, nullptr, false)};
}

TEST(GpuRoutes, AGpuIsReleasedByIndexOrUuid) {
  FakeDaemon daemon;
  daemon.on_loop([&] {
    daemon.nodes.gpu_views.resize(2);
    for (int i = 0; i < 2; ++i) {
      wire::GpuView& gpu = daemon.nodes.gpu_views[static_cast<size_t>(i)];
      gpu.index = i;
      gpu.uuid = "GPU-" + std::string(1, static_cast<char>('a' + i));
      gpu.state = wire::GpuStatus::kQuarantine;
    }
    return 0;
  });
  EXPECT_EQ(ask_for_gpus(daemon, "GET", "/v1/gpus").body.at("items").at(1).at("state"),
            "quarantine");
  EXPECT_EQ(ask_for_gpus(daemon, "POST", "/v1/gpus/0/release").body.at("state"), "free");
  EXPECT_EQ(ask_for_gpus(daemon, "POST", "/v1/gpus/GPU-b/release").body.at("state"), "free");
  EXPECT_EQ(ask_for_gpus(daemon, "POST", "/v1/gpus/0/release").status, 409);
  EXPECT_EQ(ask_for_gpus(daemon, "POST", "/v1/gpus/7/release").status, 404);
  EXPECT_EQ(ask_for_gpus(daemon, "GET", "/v1/gpus/0/release").status, 405);
}

} // namespace
} // namespace nsa::api
