#include "engine/status_payload.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace mneme {
namespace {

std::optional<std::string> Text(const absl::Status& status, absl::string_view type) {
  const absl::optional<absl::Cord> payload = status.GetPayload(type);
  if (!payload.has_value()) return std::nullopt;
  return std::string(*payload);
}

std::optional<int64_t> Number(const absl::Status& status, absl::string_view type) {
  const std::optional<std::string> text = Text(status, type);
  int64_t value = 0;
  if (!text.has_value() || !absl::SimpleAtoi(*text, &value)) return std::nullopt;
  return value;
}

}  // namespace

absl::Status FieldError(absl::string_view field, absl::string_view fault) {
  absl::Status status =
      WithReason(absl::InvalidArgumentError(absl::StrCat(field, " ", fault)), kReasonBadField);
  status.SetPayload(kFieldPayload, absl::Cord(field));
  return status;
}

absl::Status WithField(const absl::Status& status, absl::string_view field) {
  absl::string_view message = status.message();
  const std::optional<std::string> old = FieldOf(status);
  const bool leads = old.has_value() && absl::ConsumePrefix(&message, *old);
  absl::Status renamed(status.code(), absl::StrCat(leads ? field : "", message));
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    renamed.SetPayload(type, payload);
  });
  renamed.SetPayload(kFieldPayload, absl::Cord(field));
  return renamed;
}

absl::Status QueueFullError(absl::string_view message) {
  return WithRetryAfter(
      WithReason(absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", message)),
                 kReasonQueueFull),
      absl::Seconds(1));
}

absl::Status WithReason(absl::Status status, absl::string_view reason) {
  status.SetPayload(kReasonPayload, absl::Cord(reason));
  return status;
}

absl::Status WithPosition(absl::Status status, int64_t position) {
  status.SetPayload(kPositionPayload, absl::Cord(absl::StrCat(position)));
  return status;
}

absl::Status WithRetryAfter(absl::Status status, absl::Duration after) {
  status.SetPayload(kRetryAfterPayload, absl::Cord(absl::StrCat(absl::ToInt64Milliseconds(after))));
  return status;
}

bool WaitingHelps(const absl::Status& status) {
  if (RetryAfterOf(status).has_value()) return true;
  const std::optional<std::string> reason = ReasonOf(status);
  if (reason == kReasonSessionLimit || reason == kReasonStorageLimit ||
      reason == kReasonCheckpointLimit || reason == kReasonFileTooLarge) {
    return false;
  }
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
}

std::optional<std::string> ReasonOf(const absl::Status& status) {
  return Text(status, kReasonPayload);
}
std::optional<std::string> FieldOf(const absl::Status& status) {
  return Text(status, kFieldPayload);
}
std::optional<int64_t> PositionOf(const absl::Status& status) {
  return Number(status, kPositionPayload);
}
std::optional<absl::Duration> RetryAfterOf(const absl::Status& status) {
  const std::optional<int64_t> ms = Number(status, kRetryAfterPayload);
  if (!ms.has_value()) return std::nullopt;
  return absl::Milliseconds(*ms);
}

}  // namespace mneme
