// The patterns that nearly all byte-level vocabularies were trained with, as scanners of their own:
// some ten times as fast as a general pattern (tokenizers/regex/program.h), and equal to it.
#pragma once

#include <memory>

#include "absl/strings/string_view.h"
#include "tokenizers/huggingface/split_pattern.h"

namespace mneme {

// Null if `pattern` is none of them.
std::unique_ptr<SplitPattern> MakeWordScanner(absl::string_view pattern);

// GPT-2's, which the ByteLevel pre-tokenizer has built in.
extern const absl::string_view kGpt2Pattern;

}  // namespace mneme
