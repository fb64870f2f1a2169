// Requests that bring the whole conversation to a session which was fed a beginning of it, or
// something else.
#pragma once

#include "absl/status/status.h"
#include "engine/generation.h"
#include "engine/sessions/session.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

// Leaves of the request's prompt what the session does not hold yet, or finds that the session goes
// back for it (Generation::goes_back), as Request::on_mismatch allows. FAILED_PRECONDITION:
// HISTORY_MISMATCH where it may not; HISTORY_CUT, with the bytes that the session was fed, where
// that ends inside of a token of the history: a prompt that is cut there will do. `tokenizer` may
// be null.
absl::Status FitHistory(Generation& g, const Session& session, const Tokenizer* tokenizer);

}  // namespace mneme
