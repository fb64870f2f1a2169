// A session as a test expects it to be stored.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "store/session_store.h"

namespace mneme {

// A session as it has to be, in the test's own words: the store's own records prove nothing.
struct ExpectedSession {
  struct Snapshot {
    uint64_t id = 0;
    int64_t position = 0;
    int64_t turn = 0;
  };
  uint64_t id = 0;
  std::string secret;  // in all that is stored of it
  int64_t fed_tokens = 0;
  std::optional<int32_t> pending_token;
  std::string facts;
  int64_t first_turn = 0;   // of `turns`
  int64_t first_token = 0;  // tokens fed before them
  std::optional<int32_t> first_pending;
  std::string first_facts;
  std::vector<Turn> turns;
  std::vector<Snapshot> snapshots;
  std::map<std::string, int64_t> checkpoints;
  std::map<std::string, RequestRecord> requests;

  int64_t end_turn() const { return first_turn + static_cast<int64_t>(turns.size()); }
  // All of it, as text to be compared.
  std::string Describe() const;
  // Texts that are stored of it as long as it has them.
  std::set<std::string> Secrets(bool of_snapshots) const;
  void KeepSnapshots();
  // To where so many tokens had been fed, and none was pending.
  void GoBack(int64_t position, const std::string& facts_there);
  // To the end of the last turn that the position is of. False: it is of none.
  bool GoBackToTurn(int64_t position);
  void Keep(std::vector<Turn> left, int64_t position);
};

// The bytes of a snapshot name its session's secret, so that those of a deleted one can be looked
// for.
std::string SlabText(const std::string& secret, const ExpectedSession::Snapshot& snapshot);
// As ExpectedSession::Describe, of a store; `keys`: of requests.
std::string DescribeStored(SessionStore& store, FileSystem& files, const SessionRecord& session,
                           const std::set<std::string>& keys);

}  // namespace mneme
