#include "fetch/s3.h"

#include "common/base/printable.h"
#include "common/base/text.h"
#include "fetch/url.h"

#include <algorithm>
#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <sstream>

namespace nsa::fetch {
namespace {

namespace ptree = boost::property_tree;

constexpr int kDeepestListing = 16; // limit of nested elements, because the parser is recursive

bool all_of(std::string_view text, std::string_view others) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           others.find(c) != others.npos;
  });
}

bool is_graphic(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

// Base URL of a bucket's keys, without the last slash.
std::string bucket_url(const S3Store& store, const std::string& bucket) {
  if (!store.endpoint.empty()) return store.endpoint + "/" + bucket;
  const std::string host =
      "s3." + store.region + ".amazonaws.com" + (store.region.starts_with("cn-") ? ".cn" : "");
  // No certificate covers a host name with an additional dot.
  if (bucket.find('.') != bucket.npos) return "https://" + host + "/" + bucket;
  return "https://" + bucket + "." + host;
}

bool is_too_deep(std::string_view xml) {
  int depth = 0;
  for (size_t at = xml.find('<'); at != xml.npos; at = xml.find('<', at + 1)) {
    if (at + 1 == xml.size() || xml[at + 1] == '?' || xml[at + 1] == '!') continue;
    const size_t end = xml.find('>', at);
    const bool closes = xml[at + 1] == '/';
    const bool empty = end != xml.npos && xml[end - 1] == '/';
    depth += closes ? -1 : empty ? 0 : 1;
    if (depth > kDeepestListing) return true;
  }
  return false;
}

// The text of <name> in a short answer; empty if there is none.
std::string element(std::string_view xml, const std::string& name) {
  const size_t begin = xml.find("<" + name + ">");
  if (begin == xml.npos) return {};
  const size_t first = begin + name.size() + 2, end = xml.find("</" + name + ">", first);
  return end == xml.npos ? std::string() : printable(std::string(xml.substr(first, end - first)));
}

} // namespace

Result<S3Store> s3_store(const std::function<std::string(const char*)>& environment) {
  S3Store store;
  auto first_of = [&](const char* one, const char* other) {
    const std::string value = environment(one);
    return value.empty() ? environment(other) : value;
  };
  store.endpoint = first_of("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
  if (!store.endpoint.empty() &&
      (!is_url(store.endpoint) || store.endpoint.find_first_of("?#@") != std::string::npos))
    return fail(ErrorCode::kInvalidArgument, "AWS_ENDPOINT_URL is no plain http or https address",
                "export AWS_ENDPOINT_URL=https://HOST[:PORT]");
  while (store.endpoint.ends_with('/'))
    store.endpoint.pop_back();
  if (const std::string region = first_of("AWS_REGION", "AWS_DEFAULT_REGION"); !region.empty())
    store.region = region;
  if (!all_of(store.region, "-"))
    return fail(ErrorCode::kInvalidArgument, "AWS_REGION names no region",
                "export AWS_REGION=us-east-1, or the region of the bucket");
  store.key_id = environment("AWS_ACCESS_KEY_ID");
  store.secret = environment("AWS_SECRET_ACCESS_KEY");
  store.session_token = environment("AWS_SESSION_TOKEN");
  if (store.key_id.empty() != store.secret.empty())
    return fail(ErrorCode::kInvalidArgument,
                "only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set",
                "export both, or unset both to read public objects");
  for (const std::string* value : {&store.key_id, &store.secret, &store.session_token})
    if (!is_graphic(*value))
      return fail(ErrorCode::kInvalidArgument,
                  "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_SESSION_TOKEN holds characters "
                  "that no key has",
                  "export them again, without quotes and line ends inside");
  return store;
}

Result<S3Place> s3_place(const std::string& source) {
  const std::string rest = source.substr(kS3.size());
  const size_t slash = rest.find('/');
  S3Place place;
  if (slash != rest.npos) place = {rest.substr(0, slash), rest.substr(slash + 1)};
  if (place.path.empty() || place.bucket.empty() || place.bucket.starts_with('.') ||
      !all_of(place.bucket, "._-"))
    return fail(ErrorCode::kInvalidArgument, "'" + source + "' names no bucket and object",
                "write it as s3://BUCKET/GLOB");
  return place;
}

std::string s3_object_url(const S3Store& store, const S3Place& object) {
  return bucket_url(store, object.bucket) + "/" + escaped_path(object.path);
}

// The parameters are in the order in which they are signed.
std::string s3_listing_url(const S3Store& store, const std::string& bucket,
                           const std::string& prefix, const std::string& continuation) {
  const std::string next =
      continuation.empty() ? "" : "continuation-token=" + escaped_part(continuation) + "&";
  return bucket_url(store, bucket) + "/?" + next + "list-type=2&prefix=" + escaped_part(prefix);
}

Result<S3Listing> parse_s3_listing(const std::string& xml, const std::string& name) {
  if (is_too_deep(xml)) return fail(ErrorCode::kCorrupt, name + " is no listing of a bucket");
  S3Listing listing;
  try {
    std::istringstream in(xml);
    ptree::ptree tree;
    ptree::read_xml(in, tree);
    for (const auto& [kind, entry] : tree.get_child("ListBucketResult")) {
      if (kind == "NextContinuationToken") listing.continuation = trim(entry.data());
      if (kind != "Contents") continue;
      listing.objects.push_back({entry.get<std::string>("Key"), entry.get<std::string>("ETag", ""),
                                 entry.get<uint64_t>("Size")});
    }
    const auto more = tree.get<std::string>("ListBucketResult.IsTruncated", "false");
    if ((trim(more) == "true") == listing.continuation.empty())
      return fail(ErrorCode::kCorrupt, name + " does not say how its listing continues");
  } catch (const ptree::ptree_error& error) {
    return fail(ErrorCode::kCorrupt,
                name + " is no listing of a bucket: " + printable(error.what()),
                "is AWS_ENDPOINT_URL an S3-compatible store?");
  }
  return listing;
}

Error s3_refusal(const S3Store& store, const std::string& printable_url, const HttpAnswer& answer,
                 std::string_view body) {
  const std::string code = element(body, "Code"), message = element(body, "Message");
  Error error{ErrorCode::kSystem, printable_url + " answered " + std::to_string(answer.status), {}};
  if (!code.empty()) error.what += " " + code.substr(0, 100);
  if (!message.empty()) error.what += " (" + message.substr(0, 200) + ")";
  std::string region = answer.header("x-amz-bucket-region");
  if (region.empty()) region = element(body, "Region");
  if (answer.status < 408 && !region.empty() && all_of(region, "-") && region != store.region) {
    error.code = ErrorCode::kInvalidArgument;
    error.next = "the bucket is in another region: export AWS_REGION=" + region;
  } else if (answer.status == 404 || answer.status == 410) {
    error.code = ErrorCode::kNotFound;
    error.next = "check bucket and key: s3://BUCKET/GLOB; for a store that is not Amazon's: export "
                 "AWS_ENDPOINT_URL=https://HOST";
  } else if (answer.status == 400 || answer.status == 401 || answer.status == 403) {
    error.code = ErrorCode::kPermission;
    if (code == "RequestTimeTooSkewed")
      error.next = "set this machine's clock";
    else if (code == "ExpiredToken" || code == "TokenRefreshRequired")
      error.next = "get new credentials and export them; the same command continues";
    else if (store.key_id.empty())
      error.next =
          "export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of an account that may read it";
    else if (code == "InvalidAccessKeyId" || code == "SignatureDoesNotMatch")
      error.next = "export the right AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_REGION";
    else
      error.next =
          "let the account of AWS_ACCESS_KEY_ID do s3:GetObject, and s3:ListBucket for globs";
  } else if (answer.status >= 300 && answer.status < 400) {
    error.next = "export the AWS_REGION of the bucket";
  }
  return error;
}

} // namespace nsa::fetch
