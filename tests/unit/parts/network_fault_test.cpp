// Which pair of nodes cannot reach each other. The kernels of both report on the ranks' links.
#include "daemon/parts/network_fault.h"
#include "daemon/proc/tcp_links.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nsa::parts {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Each rank has a link to each other rank. The links between `from` and `to` have `retransmits`
// retransmissions.
std::vector<LinksOfNode> three_nodes(int ant_to_bee, int bee_to_ant, int cat_to_ant = 0) {
  const auto link = [](Rank rank, const char* own, const char* peer, int retransmits) {
    return RankLink{rank, own, peer, retransmits > 0 ? 70'000u : 0u, retransmits};
  };
  return {
      {"ant", {link(0, "10.0.0.1", "10.0.0.2", ant_to_bee), link(0, "10.0.0.1", "10.0.0.3", 0)}},
      {"bee", {link(1, "10.0.0.2", "10.0.0.1", bee_to_ant), link(1, "10.0.0.2", "10.0.0.3", 1)}},
      {"cat", {link(2, "10.0.0.3", "10.0.0.1", cat_to_ant)}}};
}

TEST(NetworkFault, NamesThePairAndWhoSeesIt) {
  const auto both = find_network_fault(three_nodes(4, 5));
  ASSERT_TRUE(both);
  EXPECT_EQ(both->nodes, "ant and bee");
  EXPECT_EQ(both->rank, 1) << "whose kernel has sent most often";
  EXPECT_THAT(both->witnesses,
              ElementsAre(HasSubstr("rank 1 on bee has sent 68.4 KiB to ant (10.0.0.1) 6 times"),
                          HasSubstr("rank 0 on ant has sent 68.4 KiB to bee (10.0.0.2) 5 times")));
  const auto one_way = find_network_fault(three_nodes(0, 3));
  ASSERT_TRUE(one_way);
  EXPECT_THAT(one_way->witnesses, SizeIs(1)) << "the other end hears, and waits";
  const auto worst = find_network_fault(three_nodes(3, 0, 7));
  ASSERT_TRUE(worst);
  EXPECT_EQ(worst->nodes, "ant and cat");
}

TEST(NetworkFault, IsNoneWhereSinglePacketsAreLostOrTheOtherEndIsNoNode) {
  EXPECT_FALSE(find_network_fault(three_nodes(0, 0)));
  EXPECT_FALSE(find_network_fault(three_nodes(2, 1)));
  auto elsewhere = three_nodes(0, 0);
  elsewhere[0].links.push_back({0, "10.0.0.1", "192.0.2.7", 100, 9}); // a link to a file server
  EXPECT_FALSE(find_network_fault(elsewhere));
  auto itself = three_nodes(0, 0);
  itself[0].links.push_back({0, "10.0.0.1", "10.0.0.1", 100, 9});
  EXPECT_FALSE(find_network_fault(itself));
  EXPECT_FALSE(find_network_fault({}));
}

TEST(TcpTable, HasEstablishedLinksOfTheseInodesWithRetransmissions) {
  // As Linux 6.1 prints it, on a little-endian machine.
  const std::string table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when "
                            "retrnsmt   uid  timeout inode\n"
                            "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 "
                            "00000000     0        0 11 1 0 100 0 0 10 0\n"
                            "   1: 01004D0A:9C40 02004D0A:1F90 01 00011170:00000000 01:00000063 "
                            "00000004     0        0 12 2 0 20 4 30 10 -1\n"
                            "   2: 01004D0A:9C41 02004D0A:1F90 01 00000000:00000010 02:00000063 "
                            "00000004     0        0 13 2 0 20 4 30 10 -1\n"
                            "   3: 01004D0A:9C42 02004D0A:1F90 01 00000001:00000000 01:00000063 "
                            "00000009     0        0 14 2 0 20 4 30 10 -1\n"
                            "nonsense\n";
  const auto links = proc::parse_tcp_table(table, {11, 12, 13});
  ASSERT_THAT(links, SizeIs(2));
  EXPECT_EQ(links[0].own, "10.77.0.1");
  EXPECT_EQ(links[0].peer, "10.77.0.2");
  EXPECT_EQ(links[0].waiting_bytes, 70'000u);
  EXPECT_EQ(links[0].retransmits, 4);
  EXPECT_EQ(links[1].retransmits, 0) << "that timer is another one";
  const std::string six =
      "0: 0000000000000000FFFF00000100007F:1F90 B80D0120000000000000000001000000:1F91 01 "
      "00000000:00000000 00:00000000 00000000 0 0 15 1 0 20 0 0 10 -1";
  const auto mapped = proc::parse_tcp_table(six, {15});
  ASSERT_THAT(mapped, SizeIs(1));
  EXPECT_EQ(mapped[0].own, "127.0.0.1");
  EXPECT_EQ(mapped[0].peer, "2001:db8::1");
}

TEST(TcpTable, IsReadOfALiveProcess) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0),
            client = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ASSERT_EQ(::connect(client, reinterpret_cast<sockaddr*>(&address), size), 0);
  const auto links = read_links({{3, ::getpid(), 0}});
  ::close(client);
  ::close(listener);
  ASSERT_THAT(links, SizeIs(1));
  EXPECT_EQ(links[0].rank, 3);
  EXPECT_EQ(links[0].own, "127.0.0.1");
  EXPECT_EQ(links[0].retransmits, 0);
  EXPECT_TRUE(read_links({{0, 1 << 30, 0}}).empty()) << "there is no such process";
}

} // namespace
} // namespace nsa::parts
