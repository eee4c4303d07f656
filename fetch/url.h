// URLs: what may be shown of them, whom they name, where a redirect leads. Pure (libcurl's parser).
#pragma once

#include "common/base/result.h"

#include <string>
#include <string_view>

namespace nsa::fetch {

bool is_url(std::string_view text); // http:// or https://

// Without user, password, query and fragment, which may hold secrets: for texts, manifests and
// stored plans.
std::string printable_url(const std::string& url);

// "https://host:443": a secret for one origin is for no other. Empty when `url` is none.
std::string origin_of(const std::string& url);

// Whether nobody between here and there can read what is sent: https, or this very machine.
bool is_private(const std::string& url);

// Where `location`, absolute or relative, leads from `base`. kCorrupt when it is no http(s) URL, or
// leads from https to http.
Result<std::string> redirected(const std::string& base, const std::string& location);

// The path's last part, without escapes: the file's name.
std::string file_name_of(const std::string& url);

// For a path inside a URL: everything but letters, digits and -._~/ becomes %XX.
std::string escaped_path(std::string_view path);

// The same of one part or one value of a query: a slash becomes %2F, too.
std::string escaped_part(std::string_view text);

// With each %XX as the byte that it stands for.
std::string unescaped(std::string_view text);

} // namespace nsa::fetch
