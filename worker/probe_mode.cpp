#include "worker/probe_mode.h"

#include "common/base/json.h"
#include "common/wire/launch_plan.h"
#include "worker/mesh/network_probe.h"
#include "worker/mesh/rendezvous_address.h"
#include "worker/mesh/store.h"

#include <cstdlib>

namespace nsa::worker {

namespace {

constexpr std::string_view kProbe = "--probe-network";
// Nobody trains meanwhile on these nodes, so a peer that does not answer is given up soon.
constexpr Duration kConnectLimit = std::chrono::seconds(10), kLimit = std::chrono::seconds(20);

Result<std::unique_ptr<comm::Mesh>> meet(Rank rank, const comm::RendezvousAddress& address) {
  NSA_TRY_ASSIGN(std::shared_ptr<comm::Store> store, comm::Store::open(rank, address));
  comm::MeshOptions options{{}, kConnectLimit, kLimit};
  options.tcp = comm::MeshOverTcp{address.tcp->host, store->own_host(), address.secret};
  const auto rendezvous = comm::rendezvous_over(std::move(store));
  NSA_TRY_ASSIGN(std::unique_ptr<comm::Mesh> mesh,
                 comm::Mesh::connect(rank, 2, *rendezvous, std::move(options)));
  // Rank 0 serves the store, and may leave only when the other has what it needs from it.
  if (auto met = mesh->barrier({0, comm::Kind::kBarrier, 0})->wait(); !met)
    return fail(ErrorCode::kUnavailable, met.error().what);
  return mesh;
}

} // namespace

bool is_probe(const std::vector<std::string>& arguments) {
  return !arguments.empty() && arguments.front() == kProbe;
}

Result<std::string> run_probe(const std::vector<std::string>& arguments) {
  const bool is_usual = arguments.size() == 4 && arguments[2] == "--rendezvous" &&
                        (arguments[1] == "0" || arguments[1] == "1");
  if (!is_usual)
    return fail(ErrorCode::kInvalidArgument, "a probe has a rank and a rendezvous",
                "usage: nsa-worker --probe-network 0|1 --rendezvous tcp:HOST:PORT");
  const Rank rank = arguments[1] == "0" ? 0 : 1;
  NSA_TRY_ASSIGN(comm::RendezvousAddress address, comm::parse_rendezvous(arguments[3]));
  const char* secret = std::getenv(wire::kAttemptMark);
  if (!address.tcp || secret == nullptr || *secret == '\0')
    return fail(ErrorCode::kInvalidArgument, std::string("a probe meets over TCP, with a secret "
                                                         "in ") +
                                                 wire::kAttemptMark);
  address.secret = secret;
  address.limit = kConnectLimit;
  if (rank == 0) address.listen_fd = wire::kRankStoreFd;
  NSA_TRY_ASSIGN(const std::unique_ptr<comm::Mesh> mesh, meet(rank, address));
  const auto measured = comm::measure_network(*mesh, rank);
  if (!measured) return fail(ErrorCode::kUnavailable, measured.error().what);
  // So that neither end closes while the other is in its last exchange.
  (void)mesh->barrier({0, comm::Kind::kBarrier, 1})->wait();
  const nlohmann::json result = {{"latency_seconds", measured->latency_seconds},
                                 {"bytes_per_second", measured->bytes_per_second}};
  return result.dump() + "\n";
}

} // namespace nsa::worker
