#include "server/net/connection_evictor.h"

#include <algorithm>

namespace mneme {

void ConnectionEvictor::Add(EvictableConnections* port) {
  absl::MutexLock lock(&mu_);
  ports_.push_back(port);
}

void ConnectionEvictor::Remove(EvictableConnections* port) {
  absl::MutexLock lock(&mu_);
  std::erase(ports_, port);
}

bool ConnectionEvictor::MakeRoom(int listener) {
  absl::MutexLock lock(&mu_);
  std::vector<std::pair<ConnectionWorth, EvictableConnections*>> candidates;
  for (EvictableConnections* port : ports_) {
    if (const std::optional<ConnectionWorth> worth = port->LeastWorth()) {
      candidates.emplace_back(*worth, port);
    }
  }
  std::sort(candidates.begin(), candidates.end());
  for (const auto& [worth, port] : candidates) {
    if (port->EvictLeast()) return true;
  }
  spare_file_.RefuseOne(listener);
  return false;
}

}  // namespace mneme
