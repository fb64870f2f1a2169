#include "engine/sessions/session_import.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/status_payload.h"

namespace mneme {
namespace {

constexpr absl::string_view kFile = "the session's file";

// An error of the file's contents, for machines.
absl::Status Explained(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status)) return status;
  return WithReason(status, kReasonBadFile);
}

absl::Status CheckTokens(const SessionFacts& facts, const ModelInfo& info) {
  const auto check = [&](absl::string_view what, int64_t token) -> absl::Status {
    if (token < info.vocab) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(kFile, ": ", what, " is token ", token, ", expected one below ", info.vocab));
  };
  for (const int32_t mark : facts.history) {
    if (mark == TokenHistory::kForgotten) continue;
    MNEME_RETURN_IF_ERROR(check("one of the history", mark < 0 ? ~mark : mark));
  }
  return check("the pending one", facts.pending_token.value_or(0));
}

absl::Status CheckContext(const SessionFacts& facts, const ModelInfo& info) {
  if (info.max_context == 0 || facts.fed_tokens <= info.max_context) return absl::OkStatus();
  return WithReason(absl::FailedPreconditionError(absl::StrCat(
                        kFile, ": its session was fed ", facts.fed_tokens,
                        " tokens, but one of this server's has room for ", info.max_context, " (",
                        ContextBound(info, info.max_context), ")")),
                    kReasonContextFull);
}

// How many slots a file's engrams lie in is a matter of the server that wrote it; 0: of a model
// that makes none.
int EngramRoomOf(const CanonicalState& state) {
  const StateTensor* const types = state.Find("engrams.types");
  return types == nullptr || types->shape.rank != 1 ? 0 : static_cast<int>(types->shape[0]);
}

absl::Status FitEngrams(const Model& model, CanonicalState& state) {
  const absl::Status fits = model.FitEngrams(state);
  if (!absl::IsFailedPrecondition(fits)) return Explained(fits);
  return WithReason(absl::FailedPreconditionError(absl::StrCat(
                        kFile, ": its session has no place here: ", fits.message(),
                        ". A server with --engram-capacity ", EngramRoomOf(state), " takes it in")),
                    kReasonEngramCapacity);
}

}  // namespace

int64_t MostTokens(const ModelInfo& info) {
  // Rings of any size are full by then.
  return info.max_context > 0 ? info.max_context : INT32_MAX;
}

absl::StatusOr<SessionImport> SessionImport::Read(const Model& model, const SessionModel& own,
                                                  int64_t max_bytes, std::string file) {
  if (static_cast<int64_t>(file.size()) > max_bytes) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                          kFile, " has ", file.size(), " bytes, expected at most ", max_bytes)),
                      kReasonFileTooLarge);
  }
  SessionImport import;
  CanonicalState state;
  {
    const auto bytes = std::as_bytes(std::span(file));
    const absl::StatusOr<SessionFile> parsed = SessionFile::Parse(bytes, kFile);
    if (!parsed.ok()) return Explained(parsed.status());
    MNEME_RETURN_IF_ERROR(parsed->CheckSum());
    MNEME_RETURN_IF_ERROR(parsed->CheckModel(own));
    import.facts = parsed->facts();
    MNEME_RETURN_IF_ERROR(CheckContext(import.facts, model.info()));
    MNEME_RETURN_IF_ERROR(Explained(CheckTokens(import.facts, model.info())));
    absl::StatusOr<CanonicalState> read = parsed->State();
    if (!read.ok()) return Explained(read.status());
    state = *std::move(read);
    import.engram_capacity = EngramRoomOf(state);
    MNEME_RETURN_IF_ERROR(FitEngrams(model, state));
  }
  std::string().swap(file);
  import.state = std::make_unique<StateCopy>(model);
  MNEME_RETURN_IF_ERROR(Explained(import.state->Encode(state)));
  return import;
}

}  // namespace mneme
