// Makes responses from values and errors. All routes use the same JSON bodies. Pure.
#pragma once

#include "common/base/json.h"
#include "common/net/http.h"
#include "common/wire/error_view.h"

namespace nsa::api {

// Text from ranks and paths may hold any bytes. Bytes that are not UTF-8 are replaced, so nothing
// throws.
inline std::string dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

inline net::Response reply(const nlohmann::json& json, int status = 200) {
  net::Response response;
  response.status = status;
  response.body = dump(json) + "\n";
  return response;
}

inline net::Response reply_error(const wire::ErrorView& view, int status) {
  return reply(nlohmann::json(view), status);
}

inline net::Response reply_error(const Error& error) {
  return reply_error(wire::to_view(error), wire::http_status(error.code));
}

template <class T> net::Response reply_items(const std::vector<T>& items) {
  nlohmann::json array = nlohmann::json::array();
  for (const T& item : items)
    array.push_back(item);
  return reply({{"items", std::move(array)}});
}

// With `lines` the stream holds JSON lines. Otherwise it holds one JSON text in pieces.
inline net::Response line_stream(std::function<void(std::shared_ptr<net::Stream>)> stream,
                                 bool lines = true) {
  net::Response response;
  if (lines) response.content_type = "application/x-ndjson";
  response.stream = std::move(stream);
  return response;
}

inline std::string json_line(const nlohmann::json& json) {
  return dump(json) + "\n";
}

} // namespace nsa::api
