#include "fetch/http.h"

#include "common/base/build_info.h"
#include "common/base/printable.h"
#include "common/base/text.h"
#include "fetch/url.h"

#include <algorithm>
#include <cstring>
#include <curl/curl.h>
#include <random>
#include <thread>

namespace nsa::fetch {
namespace {

constexpr int kMostRedirects = 10;
// Longest wait between tries. If a server asks for more, the fetch ends.
constexpr double kLongestPatience = 3600;
constexpr size_t kMessageBytes = 4096; // limit of the body of a refusal
// A GET has no body, and S3 stores require the hash of the empty body.
constexpr char kSha256OfNothing[] =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

// Whether a retry after this libcurl failure may succeed.
bool may_pass(CURLcode code) {
  switch (code) {
  case CURLE_UNSUPPORTED_PROTOCOL:
  case CURLE_URL_MALFORMAT:
  case CURLE_PEER_FAILED_VERIFICATION:
  case CURLE_SSL_CACERT_BADFILE:
  case CURLE_OUT_OF_MEMORY:
    return false;
  default:
    return true;
  }
}

tl::unexpected<Error> interrupted() {
  return fail(ErrorCode::kUnavailable, "interrupted");
}

} // namespace

// Result of one try.
struct Http::Try {
  Status status;
  HttpAnswer answer;
  bool again = false; // a retry may succeed
};

// The data that libcurl's callbacks use.
struct Http::Transfer {
  const Request& request;
  std::stop_token stop;
  std::atomic<uint64_t>& received;
  HttpAnswer answer;
  std::string message; // text of a refusal
  Status verdict;
  bool accepted = false;

  bool take_headers() {
    accepted = true;
    verdict = request.accept(answer);
    return verdict.has_value();
  }

  static size_t on_header(char* data, size_t, size_t size, void* self) {
    HttpAnswer& answer = static_cast<Transfer*>(self)->answer;
    const std::string_view line = trim({data, size});
    // The headers so far belonged to an interim answer.
    if (line.starts_with("HTTP/")) answer.headers.clear();
    if (const size_t colon = line.find(':'); colon != line.npos)
      answer.headers[lower(line.substr(0, colon))] = trim(line.substr(colon + 1));
    return size;
  }

  static size_t on_body(char* data, size_t, size_t size, void* pointer) {
    auto& self = *static_cast<Transfer*>(pointer);
    self.received += size;
    if (self.answer.status == 0) self.read_status();
    if (self.answer.status / 100 != 2) {
      self.message.append(data, std::min(size, kMessageBytes - self.message.size()));
      return self.message.size() < kMessageBytes ? size : 0;
    }
    if (!self.accepted && !self.take_headers()) return 0;
    self.verdict = self.request.body({data, size});
    return self.verdict ? size : 0;
  }

  static int on_progress(void* pointer, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    auto& self = *static_cast<Transfer*>(pointer);
    return self.stop.stop_requested() || self.request.enough.stop_requested() ? 1 : 0;
  }

  void read_status() {
    long status = 0;
    curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
    answer.status = static_cast<int>(status);
  }

  CURL* handle = nullptr;
};

// Counts tries, and waits between them.
class Http::Patience {
public:
  Patience(const Http& http, std::stop_token enough) : http_(http), enough_(std::move(enough)) {}

  void reset() { tries_ = 0; }

  // Ok means try again. Otherwise it returns the final error.
  Status after(Try attempt) {
    Error error = std::move(attempt.status).error();
    if (!attempt.again) return fail(std::move(error));
    if (++tries_ > http_.options_.retries) {
      error.what += "; tried " + std::to_string(tries_) + " times";
      if (error.next.empty())
        error.next = "look at the network and the server; the same command continues";
      return fail(std::move(error));
    }
    double wait = wanted_wait(attempt.answer);
    if (wait > kLongestPatience) {
      error.next = "run the same command again in " + format_duration(wait) + ": it continues";
      return fail(std::move(error));
    }
    // A random part keeps many clients from retrying at the same moment.
    thread_local std::minstd_rand dice(std::random_device{}());
    std::uniform_real_distribution<double> jitter(1.0, 1.25);
    if (wait < 0) wait = std::min(60.0, 0.5 * static_cast<double>(1u << std::min(tries_ - 1, 10)));
    wait *= jitter(dice);
    if (http_.options_.notice && wait >= 2)
      http_.options_.notice(error.what + "; waiting " + format_duration(wait) + ", try " +
                            std::to_string(tries_) + " of " +
                            std::to_string(http_.options_.retries));
    for (double slept = 0; slept < wait; slept += 0.05) {
      if (http_.stop_.stop_requested() || enough_.stop_requested()) return interrupted();
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(0.05, wait - slept)));
    }
    return {};
  }

private:
  const Http& http_;
  std::stop_token enough_;
  int tries_ = 0;
};

Http::Http(HttpOptions options, std::stop_token stop)
    : options_(std::move(options)), stop_(std::move(stop)) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  (void)ready;
  while (options_.hub.ends_with('/'))
    options_.hub.pop_back();
}

Http::~Http() {
  for (void* handle : idle_)
    curl_easy_cleanup(handle);
}

bool Http::may_have_token(const std::string& url) const {
  return !options_.token.empty() && is_private(url) && origin_of(url) == origin_of(options_.hub);
}

Error Http::refusal(const Request& request, const HttpAnswer& answer, std::string_view body) const {
  const std::string& url = request.url;
  if (request.store == Store::kS3 && !may_pass(answer.status))
    return s3_refusal(options_.s3, printable_url(url), answer, body);
  const bool hub = origin_of(url) == origin_of(options_.hub);
  Error error{
      ErrorCode::kSystem, printable_url(url) + " answered " + std::to_string(answer.status), {}};
  if (const std::string reason = answer.header("x-error-message"); !reason.empty())
    error.what += " (" + printable(reason.substr(0, 200)) + ")";
  switch (answer.status) {
  case 401:
    error.code = ErrorCode::kPermission;
    error.next =
        !hub ? "the server wants a login: use a presigned URL"
        : options_.token.empty()
            ? "check the name; a private or gated data set wants a token: export HF_TOKEN=..."
            : "HF_TOKEN was refused: make a new one on the hub's page of access tokens";
    break;
  case 403:
    error.code = ErrorCode::kPermission;
    error.next = !hub ? "a signed URL expires: make a new one; the same command then continues"
                      : "accept the data set's terms on its page with the account of HF_TOKEN, and "
                        "give the token the right to read gated data sets";
    break;
  case 404:
  case 410:
    error.code = ErrorCode::kNotFound;
    error.next =
        !hub ? "check the address"
             : "check owner, name, revision and path: hf://datasets/OWNER/NAME@REVISION/GLOB";
    break;
  case 408:
  case 429:
    error.code = ErrorCode::kUnavailable;
    error.next =
        hub && options_.token.empty()
            ? "wait and run the same command: it continues; HF_TOKEN raises the hub's limit"
            : "wait and run the same command: it continues";
    break;
  default:
    if (answer.status < 500) break;
    error.code = ErrorCode::kUnavailable;
    error.next = "the server has a fault: run the same command later, it continues";
  }
  return error;
}

Http::Try Http::exchange(const Request& request) {
  CURL* handle = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    if (!idle_.empty()) {
      handle = idle_.back();
      idle_.pop_back();
    }
  }
  if (!handle) handle = curl_easy_init();
  curl_easy_reset(handle); // the reset keeps open connections
  Transfer transfer{request, stop_, received_, {}, {}, {}, false, handle};
  std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(nullptr, curl_slist_free_all);
  const bool sign = request.store == Store::kS3 && !options_.s3.key_id.empty();
  auto add = [&](const std::string& header) {
    headers.reset(curl_slist_append(headers.release(), header.c_str()));
  };
  // libcurl signs every X-Amz-... header. Newer versions would add the first one themselves.
  if (sign) add(std::string("X-Amz-Content-Sha256: ") + kSha256OfNothing);
  if (sign && !options_.s3.session_token.empty())
    add("X-Amz-Security-Token: " + options_.s3.session_token);
  if (!sign && may_have_token(request.url)) add("Authorization: Bearer " + options_.token);
  const std::string range = request.range ? std::to_string(request.range->first) + "-" +
                                                std::to_string(request.range->last)
                                          : std::string();
  char why[CURL_ERROR_SIZE] = "";
  auto set = [&](CURLoption option, auto value) { curl_easy_setopt(handle, option, value); };
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_USERAGENT, "nsa-fetch");
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_CONNECTTIMEOUT, 30L);
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(options_.silence_seconds));
  set(CURLOPT_BUFFERSIZE, 262144L);
  set(CURLOPT_ERRORBUFFER, why);
  // A proxy gets none of these headers.
  set(CURLOPT_HEADEROPT, static_cast<long>(CURLHEADER_SEPARATE));
  if (headers) set(CURLOPT_HTTPHEADER, headers.get());
  if (sign) {
    set(CURLOPT_AWS_SIGV4, ("aws:amz:" + options_.s3.region + ":s3").c_str());
    set(CURLOPT_USERNAME, options_.s3.key_id.c_str());
    set(CURLOPT_PASSWORD, options_.s3.secret.c_str());
    set(CURLOPT_PATH_AS_IS, 1L);
  }
  if (request.range) set(CURLOPT_RANGE, range.c_str());
  set(CURLOPT_HEADERFUNCTION, &Transfer::on_header);
  set(CURLOPT_HEADERDATA, &transfer);
  set(CURLOPT_WRITEFUNCTION, &Transfer::on_body);
  set(CURLOPT_WRITEDATA, &transfer);
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, &Transfer::on_progress);
  set(CURLOPT_XFERINFODATA, &transfer);
  const CURLcode code = curl_easy_perform(handle);
  transfer.read_status();
  if (code == CURLE_OK && transfer.answer.status / 100 == 2 && !transfer.accepted)
    transfer.take_headers(); // the body is empty, so no callback has checked the headers
  {
    const std::scoped_lock lock(mutex_);
    idle_.push_back(handle);
  }
  Try attempt;
  const int status = transfer.answer.status;
  attempt.answer = std::move(transfer.answer);
  if (code == CURLE_ABORTED_BY_CALLBACK) {
    attempt.status = interrupted();
  } else if (!transfer.verdict) {
    attempt.again = transfer.verdict.error().code == ErrorCode::kUnavailable;
    attempt.status = std::move(transfer.verdict);
  } else if (status >= 400 || (is_redirect(status) && attempt.answer.header("location").empty())) {
    attempt.again = may_pass(status);
    attempt.status = fail(refusal(request, attempt.answer, transfer.message));
  } else if (code != CURLE_OK && !is_redirect(status)) {
    attempt.again = may_pass(code);
    attempt.status = fail(ErrorCode::kUnavailable, printable_url(request.url) + ": " +
                                                       (*why ? why : curl_easy_strerror(code)));
  }
  return attempt;
}

Http::Try Http::follow(Request request, std::string* led_to) {
  const std::string start = request.url;
  for (int hop = 0; hop <= kMostRedirects; ++hop) {
    Try attempt = exchange(request);
    if (!attempt.status || !is_redirect(attempt.answer.status)) {
      if (led_to && attempt.status) *led_to = request.url == start ? "" : request.url;
      return attempt;
    }
    auto next = redirected(request.url, attempt.answer.header("location"));
    if (!next) {
      attempt.status = fail(std::move(next).error());
      return attempt;
    }
    if (origin_of(*next) != origin_of(request.url)) request.store = Store::kPlain;
    request.url = std::move(*next);
  }
  Try attempt;
  attempt.status = fail(ErrorCode::kCorrupt,
                        printable_url(start) + " redirects more than " +
                            std::to_string(kMostRedirects) + " times",
                        "tell who runs the server; another address of the file may work");
  return attempt;
}

Result<Http::Page> Http::get_page(const std::string& url, size_t max_bytes, Store store) {
  Page page;
  Patience patience(*this, {});
  while (true) {
    page.body.clear();
    Request request;
    request.url = url;
    request.store = store;
    request.accept = [](const HttpAnswer&) { return Status{}; };
    request.body = [&](std::string_view bytes) -> Status {
      page.body.append(bytes);
      if (page.body.size() <= max_bytes) return {};
      return fail(ErrorCode::kExhausted,
                  printable_url(url) + " answers with more than " + format_bytes(max_bytes),
                  "name fewer files");
    };
    Try attempt = follow(std::move(request));
    if (!attempt.status) {
      NSA_TRY(patience.after(std::move(attempt)));
      continue;
    }
    const std::string link = attempt.answer.header("link");
    const size_t begin = link.find('<'), end = link.find('>');
    if (link.find("rel=\"next\"") != link.npos && begin < end && end != link.npos) {
      NSA_TRY_ASSIGN(page.next, redirected(url, link.substr(begin + 1, end - begin - 1)));
    }
    return page;
  }
}

std::string Http::File::name() const {
  return printable_url(url_);
}

// Compares the answer's headers with what is known of the file and what was requested.
Status Http::File::check(const HttpAnswer& answer, std::optional<ByteRange> range) {
  const std::string etag = answer.header("etag");
  if (!identity_.etag.empty() && !etag.empty() && etag != identity_.etag)
    return fail(ErrorCode::kConflict,
                name() + " changed on the server (ETag " + identity_.etag + " became " +
                    printable(etag) + ")",
                "fetch it again: --restart");
  std::optional<uint64_t> total = number_in(answer.header("content-length"));
  if (range) {
    if (answer.status != 206)
      return fail(ErrorCode::kUnavailable, name() + " was asked for a range and gave everything");
    const auto got = content_range(answer.header("content-range"));
    if (!got || got->first != range->first)
      return fail(ErrorCode::kUnavailable, name() + " was asked for bytes from " +
                                               std::to_string(range->first) + " on and gave '" +
                                               printable(answer.header("content-range")) + "'");
    total = got->total;
  }
  if (identity_.bytes && total && *total != *identity_.bytes)
    return fail(ErrorCode::kConflict,
                name() + " changed on the server (" + std::to_string(*identity_.bytes) +
                    " bytes became " + std::to_string(*total) + ")",
                "fetch it again: --restart");
  return {};
}

Status Http::File::probe(const FileIdentity& expected) {
  identity_ = expected;
  Patience patience(http_, {});
  while (true) {
    Status checked;
    Request request;
    request.url = url_;
    request.store = store_;
    request.range = ByteRange{0, 0};
    request.accept = [](const HttpAnswer& answer) -> Status {
      if (answer.status == 206) return {};
      return fail(ErrorCode::kUnsupported, "the headers are enough");
    };
    request.body = [](std::string_view) { return Status{}; };
    std::string led_to;
    Try attempt = http_.follow(std::move(request), &led_to);
    const HttpAnswer& answer = attempt.answer;
    const auto range = content_range(answer.header("content-range"));
    const bool empty = answer.status == 416 && range && range->total == uint64_t{0};
    if (answer.status / 100 != 2 && !empty) {
      NSA_TRY(patience.after(std::move(attempt)));
      continue;
    }
    has_ranges_ = empty || (answer.status == 206 && range && range->total);
    const auto asked = answer.status == 206 ? std::optional(ByteRange{0, 0}) : std::nullopt;
    if (!empty) NSA_TRY(check(answer, asked));
    identity_.etag = answer.header("etag");
    if (has_ranges_)
      identity_.bytes = range->total;
    else if (const auto length = number_in(answer.header("content-length")); length)
      identity_.bytes = answer.status == 200 ? length : identity_.bytes;
    redirected_to_ = led_to;
    return {};
  }
}

Status Http::File::read(uint64_t first, std::span<char> out, const std::stop_token& enough) {
  Patience patience(http_, enough);
  size_t got = 0;
  while (got < out.size()) {
    const size_t before = got;
    const ByteRange range{first + got, first + out.size() - 1};
    Request request;
    {
      const std::scoped_lock lock(mutex_);
      request.url = redirected_to_.empty() ? url_ : redirected_to_;
    }
    const bool shortcut = request.url != url_;
    if (origin_of(request.url) == origin_of(url_)) request.store = store_;
    request.range = range;
    request.enough = enough;
    request.accept = [&](const HttpAnswer& answer) { return check(answer, range); };
    request.body = [&](std::string_view bytes) -> Status {
      const size_t count = std::min(bytes.size(), out.size() - got);
      std::memcpy(out.data() + got, bytes.data(), count);
      got += count;
      return {};
    };
    std::string led_to;
    Try attempt = http_.follow(std::move(request), &led_to);
    if (got > before) patience.reset();
    if (got == out.size()) break;
    if (attempt.status) {
      if (!shortcut) {
        const std::scoped_lock lock(mutex_);
        redirected_to_ = led_to;
      }
      if (got > before) continue; // a server may send less than was requested
      attempt.again = true;
      attempt.status = fail(ErrorCode::kUnavailable, name() + " gave an empty answer");
    } else if (shortcut && (attempt.answer.status == 401 || attempt.answer.status == 403 ||
                            attempt.answer.status == 404 || attempt.answer.status == 410)) {
      const std::scoped_lock lock(mutex_);
      redirected_to_.clear(); // a signed address expired, so ask for another
      continue;
    }
    NSA_TRY(patience.after(std::move(attempt)));
  }
  return {};
}

Status Http::File::read_whole(const std::function<Status()>& begin,
                              const std::function<Status(std::string_view)>& body) {
  Patience patience(http_, {});
  while (true) {
    NSA_TRY(begin());
    uint64_t got = 0;
    Request request;
    request.url = url_;
    request.store = store_;
    request.accept = [&](const HttpAnswer& answer) { return check(answer, std::nullopt); };
    request.body = [&](std::string_view bytes) {
      got += bytes.size();
      return body(bytes);
    };
    Try attempt = http_.follow(std::move(request));
    if (attempt.status && identity_.bytes && got != *identity_.bytes) {
      attempt.again = true;
      attempt.status =
          fail(ErrorCode::kUnavailable, name() + " gave " + std::to_string(got) + " bytes of " +
                                            std::to_string(*identity_.bytes));
    }
    if (attempt.status) return {};
    NSA_TRY(patience.after(std::move(attempt)));
  }
}

} // namespace nsa::fetch
