// URLs: the part that may be shown, their origin, and redirect targets. Pure functions (libcurl's
// parser).
#pragma once

#include "common/base/result.h"

#include <string>
#include <string_view>

namespace nsa::fetch {

bool is_url(std::string_view text); // http:// or https://

// The URL without user, password, query and fragment, which may hold secrets. For texts, manifests
// and stored plans.
std::string printable_url(const std::string& url);

// "https://host:443". A secret for one origin must not go to another. Empty if `url` is not a URL.
std::string origin_of(const std::string& url);

// Whether nobody on the way can read what is sent: https, or a host that is this machine.
bool is_private(const std::string& url);

// The target of `location`, absolute or relative, from `base`. Fails with kCorrupt if it is not an
// http(s) URL, or leads from https to http.
Result<std::string> redirected(const std::string& base, const std::string& location);

// The path's last part, without escapes: the file's name.
std::string file_name_of(const std::string& url);

// Escapes a path inside a URL: everything but letters, digits and -._~/ becomes %XX.
std::string escaped_path(std::string_view path);

// Escapes one part of a path or one value of a query: a slash becomes %2F, too.
std::string escaped_part(std::string_view text);

// Replaces each %XX by the byte that it stands for.
std::string unescaped(std::string_view text);

} // namespace nsa::fetch
