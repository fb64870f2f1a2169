// JSON files of a model folder. Included only where such a file is parsed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme {

// Parses an object. Python writes the literals NaN, Infinity and -Infinity, which JSON lacks, and
// transformers 5 an object of one key for each, {"__float__": "NaN"}: both arrive as strings of
// that text, harmless under keys that nobody reads.
// INVALID_ARGUMENT, naming `path`, for text that is not JSON, is nested deeper than 32 levels,
// holds a key twice in one object, or is not an object.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view path);

// As above, from a file. NOT_FOUND if there is none.
absl::StatusOr<nlohmann::json> ReadJsonObject(const std::string& path);

// An error in JSON that does not parse, in a person's words.
struct JsonError {
  size_t begin = 0;  // byte of the text where the trouble begins, counted from 0
  std::string what;  // "unexpected \"}\" after a comma"
};
// `position` is the number of bytes that were read when the parser gave up.
JsonError ExplainJsonError(absl::string_view text, size_t position);

// Where byte `at` of `text` is, as messages say it: "3:7", counted from 1 in lines and bytes.
std::string LineAndColumn(absl::string_view text, size_t at);

// The value as it is shown in messages: cut, and free of control characters.
std::string Shown(const nlohmann::json& value);

}  // namespace mneme
