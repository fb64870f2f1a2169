// The named sessions: by key, and by the time at which an idle one expires.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/sessions/session.h"

namespace mneme {

// Owned and called by one thread. Sessions keep their address until they are removed. The table
// knows nothing of slabs: who removes a session releases its slot.
class SessionTable {
 public:
  // Null if there is none.
  Session* Find(const SessionKey& key) const;
  // Adds a session, idle from `now` on. Its key is new.
  Session& Insert(Session session, absl::Duration now);
  void Remove(Session& session);

  void MarkBusy(Session& session);
  void MarkIdle(Session& session, absl::Duration now);

  // When the first idle session expires; infinite if none does.
  absl::Duration NextExpiry() const;
  // An idle session that has expired by `now`; null if there is none.
  Session* FirstExpired(absl::Duration now) const;

  // Sessions of one owner.
  int CountOf(const std::string& owner) const {
    const auto it = counts_.find(owner);
    return it == counts_.end() ? 0 : it->second;
  }
  // Sorted by key; without `owner`, those of all.
  std::vector<const Session*> List(const std::optional<std::string>& owner,
                                   absl::string_view name_prefix) const;
  int size() const { return static_cast<int>(sessions_.size()); }
  template <typename Visitor>
  void ForEach(Visitor visit) const {
    for (const auto& [key, session] : sessions_) visit(*session);
  }
  template <typename Visitor>
  void ForEachToChange(Visitor visit) {
    for (const auto& [key, session] : sessions_) visit(*session);
  }

 private:
  absl::flat_hash_map<SessionKey, std::unique_ptr<Session>> sessions_;
  absl::flat_hash_map<std::string, int> counts_;        // by owner, those who have any
  std::set<std::pair<absl::Duration, Session*>> idle_;  // those that can expire
};

}  // namespace mneme
