// Quotas of callers: streams at once, tokens in a minute, and places in the queue. (Sessions are
// counted by the engine, which knows when one expires: EngineOptions::owner_session_limit.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/request.h"
#include "server/security/access.h"

namespace mneme {

inline constexpr char kReasonStreamLimit[] = "KEY_STREAM_LIMIT";
inline constexpr char kReasonTokenLimit[] = "KEY_TOKEN_LIMIT";
inline constexpr char kReasonPriorityLimit[] = "KEY_PRIORITY_LIMIT";

// Streams and tokens of all owners. Thread-safe; outlives its permits.
//
// Tokens are a bucket that holds what the owner may use in a minute, and fills up at that rate. A
// request takes prompt and max_tokens out before it begins, so that no number of requests at once
// can pass the limit together, and puts back what it did not use when it ends.
class QuotaTable {
 public:
  // One request's share. Gives all of it back when it is destroyed.
  class Permit {
   public:
    Permit(QuotaTable& table, CallerRef caller) : table_(table), caller_(std::move(caller)) {}
    ~Permit();
    Permit(const Permit&) = delete;
    Permit& operator=(const Permit&) = delete;

    // PERMISSION_DENIED for a priority that is above the caller's. One that nobody may have is for
    // the engine to refuse.
    absl::Status CheckPriority(int priority) const;
    // Takes `tokens`, once. RESOURCE_EXHAUSTED, with the time after which there will be as many;
    // INVALID_ARGUMENT where there never will.
    absl::Status TakeTokens(int64_t tokens);
    // Puts back what `usage` leaves of them.
    void Settle(const Usage& usage);

   private:
    QuotaTable& table_;
    const CallerRef caller_;
    int64_t taken_ = 0;
  };

  explicit QuotaTable(Clock& clock) : clock_(clock) {}
  QuotaTable(const QuotaTable&) = delete;
  QuotaTable& operator=(const QuotaTable&) = delete;

  // A place for one more stream, or RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<Permit>> BeginStream(const CallerRef& caller)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Streams of an owner now.
  int streams(const std::string& owner) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Account {
    int streams = 0;
    double tokens = 0;  // in the bucket, as of `filled`
    int64_t per_minute = 0;
    absl::Duration filled;
  };

  void EndStream(const std::string& owner) ABSL_LOCKS_EXCLUDED(mu_);
  // Fills the bucket up to now; a limit that changed takes effect.
  void Fill(Account& account, int64_t per_minute) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Take(const Caller& caller, int64_t tokens) ABSL_LOCKS_EXCLUDED(mu_);
  void PutBack(const Caller& caller, int64_t tokens) ABSL_LOCKS_EXCLUDED(mu_);

  Clock& clock_;
  mutable absl::Mutex mu_;
  // Owners stay once they have come: as many as there are keys and client certificates.
  absl::flat_hash_map<std::string, Account> accounts_ ABSL_GUARDED_BY(mu_);
};

using StreamPermit = std::shared_ptr<QuotaTable::Permit>;

// Checks a request's priority, takes its prompt and max_tokens from the quota, and lets the request
// keep the permit and settle when it ends. CANCELLED without a permit: the call has ended
// meanwhile.
absl::Status TakeTokensFor(Request& request, StreamPermit permit);

}  // namespace mneme
