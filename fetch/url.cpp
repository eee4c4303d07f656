#include "fetch/url.h"

#include <algorithm>
#include <cctype>
#include <curl/curl.h>
#include <memory>

namespace nsa::fetch {
namespace {

using Handle = std::unique_ptr<CURLU, void (*)(CURLU*)>;

Handle parse(const std::string& url) {
  Handle handle(curl_url(), curl_url_cleanup);
  if (curl_url_set(handle.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK)
    return {nullptr, curl_url_cleanup};
  return handle;
}

std::string part(const Handle& handle, CURLUPart which, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(handle.get(), which, &text, flags) != CURLUE_OK) return {};
  const std::unique_ptr<char, void (*)(void*)> owner(text, curl_free);
  return text;
}

} // namespace

bool is_url(std::string_view text) {
  return text.starts_with("https://") || text.starts_with("http://");
}

std::string printable_url(const std::string& url) {
  const Handle handle = parse(url);
  if (!handle) return url.substr(0, url.find_first_of("?#@"));
  for (const CURLUPart secret :
       {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_QUERY, CURLUPART_FRAGMENT})
    curl_url_set(handle.get(), secret, nullptr, 0);
  return part(handle, CURLUPART_URL);
}

std::string origin_of(const std::string& url) {
  const Handle handle = parse(url);
  if (!handle) return {};
  std::string host = part(handle, CURLUPART_HOST);
  std::transform(host.begin(), host.end(), host.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return part(handle, CURLUPART_SCHEME) + "://" + host + ":" +
         part(handle, CURLUPART_PORT, CURLU_DEFAULT_PORT);
}

bool is_private(const std::string& url) {
  const Handle handle = parse(url);
  if (!handle) return false;
  const std::string host = part(handle, CURLUPART_HOST);
  return part(handle, CURLUPART_SCHEME) == "https" || host == "localhost" || host == "[::1]" ||
         host.starts_with("127.");
}

Result<std::string> redirected(const std::string& base, const std::string& location) {
  const Handle handle = parse(base);
  if (!handle || curl_url_set(handle.get(), CURLUPART_URL, location.c_str(), 0) != CURLUE_OK ||
      !is_url(part(handle, CURLUPART_URL)))
    return fail(ErrorCode::kCorrupt,
                printable_url(base) + " redirects to what is no http or https address");
  std::string target = part(handle, CURLUPART_URL);
  if (is_private(base) && !is_private(target))
    return fail(ErrorCode::kPermission,
                printable_url(base) + " redirects to an address without encryption, " +
                    printable_url(target),
                "name that address yourself if you trust it");
  return target;
}

std::string file_name_of(const std::string& url) {
  const Handle handle = parse(url);
  if (!handle) return {};
  const std::string path = part(handle, CURLUPART_PATH, CURLU_URLDECODE);
  return path.substr(path.rfind('/') + 1);
}

std::string escaped_path(std::string_view path) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (const unsigned char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~' || c == '/';
    if (plain)
      out.push_back(static_cast<char>(c));
    else
      (out += '%') += {kDigits[c >> 4], kDigits[c & 15]};
  }
  return out;
}

std::string escaped_part(std::string_view text) {
  std::string out = escaped_path(text);
  for (size_t at; (at = out.find('/')) != out.npos;)
    out.replace(at, 1, "%2F");
  return out;
}

std::string unescaped(std::string_view text) {
  int size = 0;
  const std::unique_ptr<char, void (*)(void*)> plain(
      curl_easy_unescape(nullptr, text.data(), static_cast<int>(text.size()), &size), curl_free);
  return plain ? std::string(plain.get(), static_cast<size_t>(size)) : std::string(text);
}

} // namespace nsa::fetch
