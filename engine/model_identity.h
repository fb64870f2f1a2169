// Identities of models: stored sessions go on with the model alone whose identity is theirs.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "models/model.h"
#include "store/session_store.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

// SessionRecord::model: a hash of the weights, of the keys of the configuration that move logits or
// state, and of all that decides how text is cut (Tokenizer::digest), which is not the chat
// template. `tokenizer` may be null.
uint64_t ModelIdentity(const Model& model, const Tokenizer* tokenizer);

// The identity that versions before 2026-11-27 gave: of tokenizers it had the vocabulary alone.
uint64_t FirstModelIdentity(const Model& model, const Tokenizer* tokenizer);

// Lets the model go on with sessions that were stored under its first identity. Two models that had
// the same one are told apart from then on: the sessions are those of the first that asks.
// An error of the store's says that they stay as they are.
absl::Status TakeOverFirstIdentity(SessionStore& store, const Model& model,
                                   const Tokenizer* tokenizer);

}  // namespace mneme
