// Ranks of several nodes: the store and the mesh over TCP, between threads on the loopback
// interface.
#include "worker/mesh/mesh.h"
#include "worker/mesh/network_probe.h"
#include "worker/mesh/store.h"
#include "worker/mesh/tcp.h"

#include <functional>
#include <gtest/gtest.h>
#include <poll.h>
#include <random>
#include <sys/socket.h>
#include <thread>

namespace nsa::comm {
namespace {

using namespace std::chrono_literals;

class TcpTest : public ::testing::Test {
protected:
  // The address at which rank 0 serves. The port is bound before any rank starts, as nsad does it.
  RendezvousAddress address(Rank rank) {
    if (port_ == 0) {
      auto listener = listen_tcp(0);
      EXPECT_TRUE(listener) << listener.error().what;
      port_ = port_of(listener->get()).value_or(0);
      listener_ = std::move(*listener);
    }
    RendezvousAddress place;
    place.tcp = TcpAddress{"127.0.0.1", port_};
    place.secret = "of this attempt";
    if (rank == 0) place.listen_fd = listener_.release();
    return place;
  }

  std::unique_ptr<Mesh> join(Rank rank, int world, const RendezvousAddress& place) {
    auto store = Store::open(rank, place);
    EXPECT_TRUE(store) << store.error().what;
    if (!store) return nullptr;
    MeshOptions options{{}, 60s, 20s};
    options.tcp = MeshOverTcp{place.tcp->host, (*store)->own_host(), place.secret};
    stores_[static_cast<size_t>(rank)] = *store;
    const auto rendezvous = rendezvous_over(*store);
    auto mesh = Mesh::connect(rank, world, *rendezvous, std::move(options));
    EXPECT_TRUE(mesh) << mesh.error().what;
    return mesh ? std::move(*mesh) : nullptr;
  }

  void with_ranks(int world, const std::function<void(Rank, Mesh&)>& body) {
    stores_.resize(static_cast<size_t>(world));
    std::vector<RendezvousAddress> places;
    for (Rank r = 0; r < world; ++r)
      places.push_back(address(r));
    std::vector<std::jthread> ranks;
    for (Rank r = 0; r < world; ++r)
      ranks.emplace_back([&, r] {
        if (const auto mesh = join(r, world, places[static_cast<size_t>(r)])) body(r, *mesh);
      });
  }

  uint16_t port_ = 0;
  UniqueFd listener_;
  std::vector<std::shared_ptr<Store>> stores_;
};

std::vector<float> part_of(Rank rank, size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values)
    value = normal(random);
  return values;
}

// Adds up values as ranks on CPUs add up gradients.
class OverMesh final : public SumExchange {
public:
  explicit OverMesh(Mesh& mesh) : mesh_(mesh) {}
  tl::expected<float, PeerFailure> sum(float said) override {
    float word = said;
    if (auto done = add_up(&word, 1); !done) return tl::unexpected(done.error());
    return word;
  }
  void resize(size_t elements) override { data_.assign(elements, 0.0F); }
  Outcome exchange() override { return add_up(data_.data(), data_.size()); }

private:
  Outcome add_up(float* data, size_t elements) {
    return mesh_.all_reduce(data, elements, kFloat32, {++step_, Kind::kGradient, 0})->wait();
  }
  Mesh& mesh_;
  std::vector<float> data_;
  uint64_t step_ = 0;
};

TEST_F(TcpTest, TheNetworkIsMeasuredOnBothRanksAlike) {
  std::vector<NetworkMeasurement> measured(2);
  with_ranks(2, [&](Rank rank, Mesh& mesh) {
    OverMesh exchange(mesh);
    const auto result = measure_network(exchange, rank, 200ms);
    ASSERT_TRUE(result) << result.error().what;
    measured[static_cast<size_t>(rank)] = *result;
    EXPECT_TRUE(mesh.barrier({0, Kind::kBarrier, 1})->wait()) << "both have ended with the same";
  });
  for (const NetworkMeasurement& one : measured) {
    EXPECT_GT(one.latency_seconds, 0);
    EXPECT_GT(one.bytes_per_second, 1e5);
  }
}

TEST_F(TcpTest, AMeasurementEndsWithItsPeer) {
  with_ranks(2, [&](Rank rank, Mesh& mesh) {
    if (rank == 1) return; // its mesh is destroyed, as if the process were killed
    OverMesh exchange(mesh);
    EXPECT_FALSE(measure_network(exchange, rank, 10s));
  });
}

TEST_F(TcpTest, SumsHaveTheSameBitsOnEveryRank) {
  constexpr int kWorld = 3;
  constexpr size_t kCount = 300'001; // more than the sockets can hold at once
  std::vector<float> wanted(kCount, 0.0F);
  for (Rank r = 0; r < kWorld; ++r) { // added in the order of ranks, as in a mesh on one host
    const std::vector<float> part = part_of(r, kCount);
    for (size_t i = 0; i < kCount; ++i)
      wanted[i] += part[i];
  }
  std::vector<std::vector<float>> results(kWorld);
  with_ranks(kWorld, [&](Rank rank, Mesh& mesh) {
    std::vector<float> mine = part_of(rank, kCount);
    const auto done = mesh.all_reduce(mine.data(), mine.size(), kFloat32, {1})->wait();
    EXPECT_TRUE(done) << done.error().what;
    results[static_cast<size_t>(rank)] = std::move(mine);
  });
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(results[0], wanted);
}

TEST_F(TcpTest, ARankThatLeavesIsNamedByItsPeers) {
  with_ranks(2, [](Rank rank, Mesh& mesh) {
    if (rank == 1) return;
    std::vector<float> data(8);
    const auto done = mesh.all_reduce(data.data(), data.size(), kFloat32, {1})->wait();
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().blamed, 1);
  });
}

// Everybody can reach a port. A client without the secret gets no answer, and delays nobody.
TEST_F(TcpTest, StrangersAreTurnedAway) {
  const RendezvousAddress place = address(0);
  const auto store = Store::open(0, place);
  ASSERT_TRUE(store) << store.error().what;
  ASSERT_TRUE(rendezvous_over(*store)->publish("key", "value"));

  RendezvousAddress wrong = place;
  wrong.secret = "of another attempt";
  wrong.limit = 20s;
  const auto stranger = Store::open(1, wrong);
  ASSERT_TRUE(stranger); // so far this is only a connection
  const auto said = rendezvous_over(*stranger)->wait_for("key", 20s);
  ASSERT_FALSE(said);
  EXPECT_EQ(said.error().code, ErrorCode::kUnavailable);

  auto plain = connect_tcp(*place.tcp, {}, MonotonicTime::now() + 20s); // no greeting follows
  ASSERT_TRUE(plain) << plain.error().what;
  pollfd ended{plain->get(), POLLIN, 0};
  ASSERT_EQ(::poll(&ended, 1, 60'000), 1);
  char byte = 0;
  EXPECT_LE(::recv(plain->get(), &byte, 1, 0), 0) << "it was answered";

  const auto friend_of = Store::open(1, [&] {
    RendezvousAddress good = place;
    good.listen_fd = -1;
    return good;
  }());
  ASSERT_TRUE(friend_of);
  EXPECT_EQ(rendezvous_over(*friend_of)->wait_for("key", 20s).value_or(""), "value");
  EXPECT_EQ((*friend_of)->own_host(), "") << "both ends are this host";
}

TEST(TcpAddress, HostAndPortAreRead) {
  EXPECT_EQ(TcpAddress::parse("10.0.0.7:40122")->text(), "10.0.0.7:40122");
  EXPECT_EQ(TcpAddress::parse("[fd00::1]:7")->host, "fd00::1");
  EXPECT_EQ(TcpAddress::parse("[fd00::1]:7")->text(), "[fd00::1]:7");
  EXPECT_EQ(TcpAddress::parse(":7")->host, "");
  for (const char* text : {"", "host", "host:", "host:0", "host:65536", "host:7x"})
    EXPECT_FALSE(TcpAddress::parse(text)) << text;
  const auto address = parse_rendezvous("tcp:ant:7");
  ASSERT_TRUE(address);
  EXPECT_EQ(address->tcp->host, "ant");
  EXPECT_FALSE(parse_rendezvous("tcp::7"));
}

} // namespace
} // namespace nsa::comm
