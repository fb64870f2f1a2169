// The answer to GET /tokenizer_info: the model's tokenizer, as its tokenizer_config.json describes
// it to whoever wants to encode texts and render chats as the server does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "server/openai/json_body.h"

namespace mneme {

// The fields of tokenizer_config.json, if `folder` has one, in its order and as it has them, but:
//
// - Special tokens (bos_token, eos_token, unk_token, pad_token and others of the file) are texts,
//   however the file has them. Of the first three it is what the server uses; null: none.
// - add_bos_token and add_eos_token are what /tokenize does unless it is told otherwise.
// - chat_template is the one in use, also where it has a file of its own.
// - added_tokens_decoder, tokenizer_class and model_max_length are there where the file lacks them.
//   The length is `max_length`, or transformers' "none" where there is no limit.
// - Paths (vocab_file, name_or_path and the like) are left out: they are those of another machine.
// - vocab_size, bos_token_id and eos_token_id are there besides.
//
// Errors are those of reading files.
absl::StatusOr<Json> TokenizerInfo(const std::string& folder, const Tokenizer& tokenizer,
                                   std::optional<int64_t> max_length);

// What OpenAI's clients know as max_model_len: the fewer tokens of --max-model-len and of what a
// session can be fed.
std::optional<int64_t> MaxModelLength(const Engine& engine);

}  // namespace mneme
