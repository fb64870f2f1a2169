// A template's text as tokens, with the white space control of chat templates: as Jinja with
// trim_blocks and lstrip_blocks.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme::jinja {

struct Token {
  enum Kind {
    kText,        // outside of tags
    kBlockBegin,  // {%
    kBlockEnd,
    kPrintBegin,  // {{
    kPrintEnd,
    kName,
    kString,  // `text` is unescaped
    kInt,
    kFloat,
    kOperator,  // "==", "|", "(", ...
    kEnd,
  };
  Kind kind = kEnd;
  std::string text;
  int line = 1;
};

// INVALID_ARGUMENT, naming the line, for what cannot be a template.
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

}  // namespace mneme::jinja
