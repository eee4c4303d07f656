// GET over libcurl: redirects, credentials, retries. Any thread may call. Each call blocks, and a
// stop request ends it with kUnavailable "interrupted".
//
// HF_TOKEN goes only to the hub's own origin. This code follows redirects itself, not libcurl, and
// checks each hop. The token appears in no error, notice or file. URLs are shown without user,
// password and query, which may hold signatures. Each request to an S3-compatible store gets a new
// signature; a redirect to another origin is not signed.
//
// Transient failures are retried: 408, 429 and 5xx, cut or silent connections. The wait follows
// Retry-After or RateLimit; otherwise it doubles from half a second to a minute. Received bytes
// reset the count of tries.
#pragma once

#include "common/base/result.h"
#include "fetch/http_answer.h"
#include "fetch/s3.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace nsa::fetch {

struct HttpOptions {
  std::string hub = "https://huggingface.co"; // HF_ENDPOINT
  std::string token;                          // HF_TOKEN; may be empty
  S3Store s3;                                 // for addresses s3://
  int retries = 8;                            // tries without a byte, one after the other
  double silence_seconds = 60;                // a connection without data for this long is closed
  std::function<void(const std::string&)> notice; // reports a wait; called from any thread
};

struct ByteRange {
  uint64_t first = 0, last = 0; // inclusive, as in HTTP
};

// Identifies the content of a file. Empty or unknown parts are not compared.
struct FileIdentity {
  std::optional<uint64_t> bytes;
  std::string etag;
};

class Http {
public:
  Http(HttpOptions options, std::stop_token stop);
  ~Http();
  const HttpOptions& options() const { return options_; }

  // Whether a request is signed with the keys of options().s3.
  enum class Store { kPlain, kS3 };

  struct Page {
    std::string body, next; // next: the absolute URL of the Link header; may be empty
  };
  // Gets a whole small answer, such as a listing of the hub.
  Result<Page> get_page(const std::string& url, size_t max_bytes, Store store = Store::kPlain);

  // A file of which any range can be read.
  class File {
  public:
    File(Http& http, std::string url, Store store)
        : http_(http), url_(std::move(url)), store_(store) {}

    // Gets size, ETag and whether ranges are supported. Fails with kConflict if the file is not
    // `expected`.
    Status probe(const FileIdentity& expected);
    bool has_ranges() const { return has_ranges_; }
    const FileIdentity& identity() const { return identity_; }
    std::string name() const;

    // Several threads may call it at a time, after probe(). `enough` ends it like the stop request.
    Status read(uint64_t first, std::span<char> out, const std::stop_token& enough = {});
    // Reads the whole file in order, for servers without ranges. If the connection is cut, it
    // starts again from the beginning. It calls `begin` before each start.
    Status read_whole(const std::function<Status()>& begin,
                      const std::function<Status(std::string_view)>& body);

  private:
    friend class Http;
    Status check(const HttpAnswer& answer, std::optional<ByteRange> range);

    Http& http_;
    std::string url_;
    Store store_;
    FileIdentity identity_;
    bool has_ranges_ = false;
    std::mutex mutex_;
    std::string redirected_to_; // last redirect target of url_; a signed address expires
  };

  uint64_t bytes_received() const { return received_; }

private:
  struct Try;
  struct Transfer;
  class Patience;
  using Accept = std::function<Status(const HttpAnswer&)>;
  using Body = std::function<Status(std::string_view)>;

  struct Request {
    std::string url;
    Store store = Store::kPlain;
    std::optional<ByteRange> range;
    Accept accept; // checks the last hop's headers, before its body
    Body body;
    std::stop_token enough;
  };
  Try follow(Request request, std::string* led_to = nullptr);
  Try exchange(const Request& request);
  bool may_have_token(const std::string& url) const;
  Error refusal(const Request& request, const HttpAnswer& answer, std::string_view body) const;

  HttpOptions options_;
  std::stop_token stop_;
  std::mutex mutex_;
  std::vector<void*> idle_; // libcurl's handles, which keep their connections
  std::atomic<uint64_t> received_ = 0;
};

} // namespace nsa::fetch
