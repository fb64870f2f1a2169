// Random histories of a store on a disk that may lose its power at any instant, beside an oracle
// that knows what was acknowledged.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "store/session_store.h"
#include "tests/store/expected_session.h"
#include "tests/store/power_loss_fs.h"

namespace mneme {

class CrashHistory {
 public:
  struct Result {
    std::string violation;  // empty: none
    int64_t crashes = 0;    // images that were looked at
    std::set<std::string> sync_sites;
  };
  // A function of the seed, but for how batches fall together into commits.
  static Result Run(uint64_t seed, int steps, const std::string& ignored_site);

 private:
  using State = std::optional<ExpectedSession>;  // nothing: there is no such session
  struct Oracle {
    std::map<std::string, State> acknowledged;            // by name
    std::map<std::string, std::vector<State>> in_flight;  // what it may be instead
    std::set<std::string> erased;                         // secrets of what was deleted

    std::vector<State> Allowed(const std::string& name) const;
    void Settle(const std::string& name, State state);
  };

  CrashHistory(uint64_t seed, const std::string& ignored_site);
  void Open();
  void Step();
  // A change of that session, and what it makes of it.
  std::vector<Change> Propose(const std::string& name, const State& before, State& after);
  Turn MakeTurn(ExpectedSession& session);
  // Writes one of where the session stands; false where the disk fails.
  bool WriteSnapshot(const std::string& name, const ExpectedSession& session, uint64_t id);
  std::vector<Change> ProposeForgetting(const std::string& name, ExpectedSession& session);
  std::optional<CutSession> ProposeCut(ExpectedSession& session, int64_t position);
  void BeforeChange();
  void Check(PowerLossFileSystem& image, const Oracle& oracle, const std::string& what);
  // The state that a session of the store is in, of those that are allowed.
  std::optional<State> Match(SessionStore& store, FileSystem& files, const Oracle& oracle,
                             const std::string& name, const std::string& what);
  void GoOnFrom(std::unique_ptr<PowerLossFileSystem> disk, Oracle oracle);
  void Fail(const std::string& violation);
  bool failed() const;
  void NoteSite(const std::string& site);

  std::mt19937_64 random_;
  const std::string ignored_site_;
  std::unique_ptr<PowerLossFileSystem> disk_;
  std::unique_ptr<SessionStore> store_;

  mutable absl::Mutex mu_;
  Oracle oracle_ ABSL_GUARDED_BY(mu_);
  std::mt19937_64 crash_random_ ABSL_GUARDED_BY(mu_);
  Result result_ ABSL_GUARDED_BY(mu_);
  int64_t kill_in_ ABSL_GUARDED_BY(mu_) = -1;  // changes from now
  std::unique_ptr<PowerLossFileSystem> killed_ ABSL_GUARDED_BY(mu_);
  Oracle killed_oracle_ ABSL_GUARDED_BY(mu_);
  int made_ = 0;
};

}  // namespace mneme
