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

// What sessions of an owner, or of all, are and take, and what they may: as those are counted that
// the limits refuse. Limits are 0 where there are none, and of all owners together.
struct SessionUsage {
  int64_t sessions = 0;  // wherever their states are
  int64_t max_sessions = 0;
  int64_t stored_bytes = 0;  // SessionRecord's
  int64_t max_stored_bytes = 0;
  int64_t checkpoints = 0;
  int64_t max_checkpoints = 0;
};

// In order of owners, and of names of each.
struct SessionPage {
  std::vector<SessionInfo> sessions;
  bool has_more = false;
  size_t total = 0;    // sessions on all pages
  SessionUsage usage;  // of that owner, whatever the names
};

// The page of these sessions, which are all that there are of that owner and prefix.
SessionPage PageOf(std::vector<SessionInfo> sessions, const SessionQuery& query);

// What the loop knows of sessions that are listed: a moment's view.
struct SessionsHere {
  std::vector<SessionInfo> sessions;  // of that owner and prefix; stored_bytes is not known
  absl::flat_hash_set<SessionKey> claimed;
  SessionUsage usage;
};

// The page of sessions that are here and of those that the store alone has, which `describe` turns
// into infos. Those that are claimed and not here come or go. May be called by any thread, and
// takes time for what is here, for the page, and, where names have to begin with something, for
// looking at all names that do.
using DescribeRecord = absl::FunctionRef<SessionInfo(const SessionRecord&)>;
SessionPage PageWithStored(SessionsHere here, const SessionStore& store, const SessionQuery& query,
                           DescribeRecord describe);

}  // namespace mneme
