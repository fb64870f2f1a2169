// Listings of sessions, page by page.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "engine/request.h"
#include "store/session_store.h"

namespace mneme {

struct SessionQuery {
  std::optional<std::string> owner;  // without: those of all
  std::string name_prefix = {};
  // A page begins behind that key, whether or not there is such a session.
  SessionKey after = {};
  size_t limit = std::numeric_limits<size_t>::max();  // sessions on a page
};

// In order of owners, and of names of each.
struct SessionPage {
  std::vector<SessionInfo> sessions;
  bool has_more = false;
  size_t total = 0;  // sessions on all pages
};

// The page of these sessions, which are all that there are of that owner and prefix.
SessionPage PageOf(std::vector<SessionInfo> sessions, const SessionQuery& query);

// What the loop knows of sessions that are listed: a moment's view.
struct SessionsHere {
  std::vector<SessionInfo> sessions;  // of that owner and prefix
  absl::flat_hash_set<SessionKey> claimed;
};

// The page of sessions that are here and of those that the store alone has, which `describe` turns
// into infos. Those that are claimed and not here come or go. May be called by any thread, and
// takes time for what is here, for the page, and, where names have to begin with something, for
// looking at all names that do.
using DescribeRecord = absl::FunctionRef<SessionInfo(const SessionRecord&)>;
SessionPage PageWithStored(SessionsHere here, const SessionStore& store, const SessionQuery& query,
                           DescribeRecord describe);

}  // namespace mneme
