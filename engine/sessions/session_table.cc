#include "engine/sessions/session_table.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "base/log.h"

namespace mneme {

Session* SessionTable::Find(const SessionKey& key) const {
  const auto it = sessions_.find(key);
  return it == sessions_.end() ? nullptr : it->second.get();
}

Session& SessionTable::Insert(Session session, absl::Duration now) {
  auto owned = std::make_unique<Session>(std::move(session));
  Session& inserted = *owned;
  CHECK(sessions_.emplace(inserted.key, std::move(owned)).second)
      << "session \"" << inserted.key.name << "\" exists";
  ++counts_[inserted.key.owner];
  inserted.busy = true;
  MarkIdle(inserted, now);
  return inserted;
}

void SessionTable::Remove(Session& session) {
  idle_.erase({session.expires, &session});
  const SessionKey key = session.key;
  if (--counts_[key.owner] == 0) counts_.erase(key.owner);
  sessions_.erase(key);
}

void SessionTable::MarkBusy(Session& session) {
  CHECK(!session.busy);
  idle_.erase({session.expires, &session});
  session.busy = true;
  session.expires = absl::InfiniteDuration();
}

void SessionTable::MarkIdle(Session& session, absl::Duration now) {
  CHECK(session.busy);
  session.busy = false;
  session.expires = now + session.ttl;
  if (session.expires != absl::InfiniteDuration()) idle_.insert({session.expires, &session});
}

absl::Duration SessionTable::NextExpiry() const {
  return idle_.empty() ? absl::InfiniteDuration() : idle_.begin()->first;
}

Session* SessionTable::FirstExpired(absl::Duration now) const {
  return NextExpiry() > now ? nullptr : idle_.begin()->second;
}

std::vector<const Session*> SessionTable::List(const std::optional<std::string>& owner,
                                               absl::string_view name_prefix) const {
  std::vector<const Session*> found;
  for (const auto& [key, session] : sessions_) {
    if ((!owner.has_value() || key.owner == *owner) && absl::StartsWith(key.name, name_prefix)) {
      found.push_back(session.get());
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Session* a, const Session* b) { return a->key < b->key; });
  return found;
}

}  // namespace mneme
