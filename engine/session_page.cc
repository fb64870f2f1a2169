#include "engine/session_page.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"

namespace mneme {
namespace {

constexpr size_t kAtOnce = 256;  // records, for which the store's lock is held

}  // namespace

SessionPage PageOf(std::vector<SessionInfo> sessions, const SessionQuery& query) {
  std::sort(sessions.begin(), sessions.end(),
            [](const SessionInfo& a, const SessionInfo& b) { return a.key < b.key; });
  SessionPage page{.total = sessions.size()};
  const auto begin = std::upper_bound(
      sessions.begin(), sessions.end(), query.after,
      [](const SessionKey& key, const SessionInfo& info) { return key < info.key; });
  const size_t left = sessions.end() - begin;
  page.has_more = left > query.limit;
  std::move(begin, begin + static_cast<std::ptrdiff_t>(std::min(left, query.limit)),
            std::back_inserter(page.sessions));
  return page;
}

SessionPage PageWithStored(SessionsHere here, const SessionStore& store, const SessionQuery& query,
                           DescribeRecord describe) {
  absl::flat_hash_set<SessionKey> known = std::move(here.claimed);
  for (const SessionInfo& info : here.sessions) known.insert(info.key);
  size_t total = here.sessions.size() + store.Count(query.owner, query.name_prefix);
  for (const SessionKey& key : known) {
    const bool matches = (!query.owner.has_value() || key.owner == *query.owner) &&
                         absl::StartsWith(key.name, query.name_prefix);
    if (matches && store.Find(key.owner, key.name).has_value()) --total;
  }
  // One more than the page has says whether there are more.
  std::vector<SessionInfo>& infos = here.sessions;
  std::erase_if(infos, [&](const SessionInfo& info) { return !(query.after < info.key); });
  std::pair<std::string, std::string> to = {query.after.owner, query.after.name};
  for (size_t found = 0; found <= query.limit;) {
    const std::vector<SessionRecord> records =
        store.List(query.owner, query.name_prefix, to, kAtOnce);
    for (const SessionRecord& record : records) {
      if (found > query.limit || known.contains({record.owner, record.name})) continue;
      infos.push_back(describe(record));
      ++found;
    }
    if (records.size() < kAtOnce) break;
    to = {records.back().owner, records.back().name};
  }
  SessionPage page = PageOf(std::move(infos), query);
  for (SessionInfo& info : page.sessions) {
    info.stored_bytes = store.StoredBytesOf(info.key.owner, info.key.name);
  }
  page.total = total;
  return page;
}

}  // namespace mneme
