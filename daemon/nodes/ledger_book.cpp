#include "daemon/nodes/ledger_book.h"

namespace nsa::control {

namespace {
store::ClusterNodeRow row_of(const cluster::NodeRecord& node) {
  return {node.name,      node.serial,     node.next_serial,
          node.joined_at, node.expires_at, node.removed_at};
}
} // namespace

Result<std::vector<cluster::NodeRecord>> LedgerBook::nodes() {
  NSA_TRY_ASSIGN(const auto rows, ledger_.cluster_nodes());
  std::vector<cluster::NodeRecord> nodes;
  for (const store::ClusterNodeRow& row : rows)
    nodes.push_back(
        {row.name, row.serial, row.next_serial, row.joined_at, row.expires_at, row.removed_at});
  return nodes;
}

Status LedgerBook::save(const cluster::NodeRecord& node) {
  store::Batch batch;
  batch.cluster_nodes = {row_of(node)};
  return ledger_.commit(batch);
}

Result<std::optional<cluster::TokenRecord>> LedgerBook::token(const std::string& digest) {
  NSA_TRY_ASSIGN(const auto row, ledger_.join_token(digest));
  if (!row) return std::nullopt;
  return cluster::TokenRecord{row->digest, row->expires_at, row->used_by};
}

Status LedgerBook::add(const cluster::TokenRecord& token) {
  store::Batch batch;
  batch.join_tokens = {{token.digest, token.expires_at, token.used_by}};
  return ledger_.commit(batch);
}

Status LedgerBook::admit(const std::string& digest, const cluster::NodeRecord& node) {
  NSA_TRY_ASSIGN(auto token, ledger_.join_token(digest));
  if (!token) return fail(ErrorCode::kNotFound, "the ledger has no such token");
  token->used_by = node.name;
  store::Batch batch;
  batch.cluster_nodes = {row_of(node)};
  batch.join_tokens = {*token};
  return ledger_.commit(batch);
}

} // namespace nsa::control
