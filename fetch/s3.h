// Objects of S3-compatible stores: account, addresses, listings, and the meaning of a refusal. Pure
// functions. libcurl signs the requests (AWS Signature Version 4) in fetch/http.cpp.
#pragma once

#include "common/base/result.h"
#include "fetch/http_answer.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::fetch {

inline constexpr std::string_view kS3 = "s3://";

// A store and an account there. The secret and the session token appear in no error and no file.
struct S3Store {
  std::string endpoint;             // AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL; empty: Amazon's own
  std::string region = "us-east-1"; // AWS_REGION, AWS_DEFAULT_REGION
  std::string key_id, secret,
      session_token; // AWS_ACCESS_KEY_ID and so on; empty: nothing is signed
};

// `environment` returns the value of a variable, or an empty text.
Result<S3Store> s3_store(const std::function<std::string(const char*)>& environment);

struct S3Place {
  std::string bucket, path; // a key or a glob
};
Result<S3Place> s3_place(const std::string& source); // parses s3://BUCKET/GLOB

// Amazon's store has a host for each bucket. Other stores, and buckets with a dot, use a path of a
// shared host.
std::string s3_object_url(const S3Store& store, const S3Place& object);
std::string s3_listing_url(const S3Store& store, const std::string& bucket,
                           const std::string& prefix, const std::string& continuation);

struct S3Object {
  std::string key, etag; // the ETag includes its quotes, as in the header
  uint64_t bytes = 0;
};
struct S3Listing {
  std::vector<S3Object> objects;
  std::string continuation; // token of the next page; empty: this is the last one
};
// Parses an answer of ListObjectsV2. `name` is for errors.
Result<S3Listing> parse_s3_listing(const std::string& xml, const std::string& name);

// The error for a 3xx or 4xx answer, with what to do about it; `body` is the beginning of its XML.
Error s3_refusal(const S3Store& store, const std::string& printable_url, const HttpAnswer& answer,
                 std::string_view body);

} // namespace nsa::fetch
