// The "post_processor" of tokenizer.json.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/post_processor.h"

namespace mneme {

// From the value of "post_processor"; null: nothing is put around texts. `path` names it in errors,
// which say the key, what it holds and what was expected. UNIMPLEMENTED: a type, or a template,
// that is not supported.
//
// TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel (which moves offsets only) and
// Sequences with at most one of the first three.
absl::StatusOr<PostProcessor> ParsePostProcessor(const nlohmann::json& config,
                                                 absl::string_view path);

// A token that is put around texts, as the file spells it.
struct TemplateToken {
  std::string spelling;
  int32_t id = 0;
};
// Those of a value that ParsePostProcessor takes.
std::vector<TemplateToken> TemplateTokens(const nlohmann::json& config);

}  // namespace mneme
