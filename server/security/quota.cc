#include "server/security/quota.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/request_check.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

// Nobody knows when a stream of the same key will end.
constexpr absl::Duration kStreamRetry = absl::Seconds(1);

double PerSecond(int64_t per_minute) { return static_cast<double>(per_minute) / 60; }

}  // namespace

QuotaTable::Permit::~Permit() {
  if (taken_ > 0) table_.PutBack(*caller_, taken_);
  table_.EndStream(caller_->owner);
}

absl::Status QuotaTable::Permit::CheckPriority(int priority) const {
  const int most = caller_->limits.max_priority;
  if (priority <= most || priority > kMaxPriority) return absl::OkStatus();
  return WithField(
      WithReason(absl::PermissionDeniedError(absl::StrCat(
                     "priority is ", priority, ", and ",
                     caller_->owner.empty() ? "callers without a key" : "this key", " may ask for ",
                     most, " at most (priority=N in --api-key-file, --max-priority-per-key)")),
                 kReasonPriorityLimit),
      "priority");
}

absl::Status QuotaTable::Permit::TakeTokens(int64_t tokens) {
  if (caller_->limits.tokens_per_minute == 0) return absl::OkStatus();
  MNEME_RETURN_IF_ERROR(table_.Take(*caller_, tokens));
  taken_ = tokens;
  return absl::OkStatus();
}

void QuotaTable::Permit::Settle(const Usage& usage) {
  const int64_t unused = taken_ - usage.prompt_tokens - usage.completion_tokens;
  if (unused > 0) table_.PutBack(*caller_, unused);
  taken_ = 0;
}

absl::StatusOr<StreamPermit> QuotaTable::BeginStream(const CallerRef& caller) {
  {
    absl::MutexLock lock(&mu_);
    Account& account = accounts_[caller->owner];
    const int limit = caller->limits.max_streams;
    if (limit > 0 && account.streams >= limit) {
      return WithRetryAfter(WithReason(absl::ResourceExhaustedError(absl::StrCat(
                                           "this key has ", account.streams,
                                           " requests waiting or running, and may have ", limit)),
                                       kReasonStreamLimit),
                            kStreamRetry);
    }
    ++account.streams;
  }
  return std::make_shared<Permit>(*this, caller);
}

void QuotaTable::EndStream(const std::string& owner) {
  absl::MutexLock lock(&mu_);
  --accounts_[owner].streams;
}

int QuotaTable::streams(const std::string& owner) const {
  absl::MutexLock lock(&mu_);
  const auto it = accounts_.find(owner);
  return it == accounts_.end() ? 0 : it->second.streams;
}

void QuotaTable::Fill(Account& account, int64_t per_minute) {
  const absl::Duration now = clock_.Monotonic();
  if (account.per_minute == 0) {
    account.tokens = static_cast<double>(per_minute);
  } else {
    account.tokens += PerSecond(account.per_minute) * absl::ToDoubleSeconds(now - account.filled);
  }
  account.tokens = std::min(account.tokens, static_cast<double>(per_minute));
  account.per_minute = per_minute;
  account.filled = now;
}

absl::Status QuotaTable::Take(const Caller& caller, int64_t tokens) {
  const int64_t limit = caller.limits.tokens_per_minute;
  if (tokens > limit) {
    return WithReason(
        FieldError("stopping.max_tokens", absl::StrCat("and the prompt are ", tokens,
                                                       " tokens together, and this key may use ",
                                                       limit, " in a minute: ask for fewer")),
        kReasonTokenLimit);
  }
  absl::MutexLock lock(&mu_);
  Account& account = accounts_[caller.owner];
  Fill(account, limit);
  const double missing = static_cast<double>(tokens) - account.tokens;
  if (missing > 0) {
    return WithRetryAfter(
        WithReason(absl::ResourceExhaustedError(absl::StrCat(
                       "prompt and max_tokens are ", tokens, " tokens together, and of the ", limit,
                       " that this key may use in a minute ",
                       static_cast<int64_t>(std::max(account.tokens, 0.0)), " are left")),
                   kReasonTokenLimit),
        absl::Ceil(absl::Seconds(missing / PerSecond(limit)), absl::Milliseconds(1)));
  }
  account.tokens -= static_cast<double>(tokens);
  return absl::OkStatus();
}

void QuotaTable::PutBack(const Caller& caller, int64_t tokens) {
  absl::MutexLock lock(&mu_);
  Account& account = accounts_[caller.owner];
  account.tokens += static_cast<double>(tokens);
  account.tokens = std::min(account.tokens, static_cast<double>(account.per_minute));
}

absl::Status TakeTokensFor(Request& request, StreamPermit permit) {
  if (permit == nullptr) return absl::CancelledError("the call has ended");
  MNEME_RETURN_IF_ERROR(permit->CheckPriority(request.priority));
  const auto prompt = static_cast<int64_t>(
      std::max(request.prompt.at_start.size(), request.prompt.continued.size()));
  // Out of range is for the engine to say; here it must not overflow.
  const int64_t n = std::clamp(request.n, 1, 1 << 16);
  MNEME_RETURN_IF_ERROR(
      permit->TakeTokens(prompt + n * std::max<int64_t>(request.stop.max_tokens, 0)));
  request.on_end = [permit = std::move(permit)](const Usage& usage) { permit->Settle(usage); };
  return absl::OkStatus();
}

}  // namespace mneme
