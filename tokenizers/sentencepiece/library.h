// Finds and loads the shared library behind sentencepiece_shim.h, once per process.
#pragma once

#include "absl/status/statusor.h"
#include "tokenizers/sentencepiece/shim.h"

namespace mneme {

// The library's functions, valid until the process ends. Looked for beside the running program, in
// lib/ next to the program's folder, and where this build put it; nowhere else, so that the
// environment cannot slip in another one. Any thread.
//
// FAILED_PRECONDITION: not found, or not loadable; the message lists what was tried.
// UNIMPLEMENTED: this build has no SentencePiece.
absl::StatusOr<const mneme_sentencepiece_api*> SentencePieceLibrary();

}  // namespace mneme
