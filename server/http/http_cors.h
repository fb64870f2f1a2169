// Cross-origin requests, as the Fetch standard has them: pages of chosen origins may call this
// server from a browser and read its answers. Credentials in the sense of that standard, cookies
// and client certificates, are never allowed: keys travel in a header field that the page itself
// sets.
//
// `origins` are spelled as browsers do, "https://a.example:8443", or "*" for all of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/http/http_message.h"

namespace mneme {

// The answer to a browser that asks whether it may send a page's request; browsers send no key with
// that. None for other requests, other origins, and paths that take no `methods` ("GET, HEAD").
std::optional<HttpResponse> AnswerPreflight(const std::vector<std::string>& origins,
                                            const HttpRequest& request, absl::string_view methods);

// Lets the page that `request` comes from read `response`, if it is of one of `origins`; where
// there are any, says that the answer depends on who asks.
void AddCors(const std::vector<std::string>& origins, const HttpRequest& request,
             HttpResponse& response);

}  // namespace mneme
