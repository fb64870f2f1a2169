// Flags, environment variables and their help, read off the fields of config.proto.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "mneme/v1/config.pb.h"

namespace mneme {

// One leaf field of ServerConfig.
struct FlagSpec {
  std::string name;                                            // "max-num-seqs"
  std::vector<std::string> aliases;                            // "max-batch", "-np"
  std::string env;                                             // "MNEME_MAX_NUM_SEQS"
  std::string path;                                            // "engine.max_rows"
  const google::protobuf::FieldDescriptor* section = nullptr;  // of ServerConfig
  const google::protobuf::FieldDescriptor* field = nullptr;    // of the section
  v1::Flag options;

  bool is_bool() const;
};

// The environment variable of a flag: "MNEME_MAX_NUM_SEQS" of "max-num-seqs".
std::string VariableOf(absl::string_view flag);

// All of them, in the order of config.proto.
class FlagTable {
 public:
  FlagTable();

  const std::vector<FlagSpec>& flags() const { return flags_; }

  // `spelled` as typed, with its dashes: "--max-num-seqs", "--max_num_seqs", "-m". Null if unknown.
  const FlagSpec* Find(absl::string_view spelled) const;

  // Every spelling with its dashes, for the search of the nearest one.
  std::vector<std::string> Spellings() const;

 private:
  std::vector<FlagSpec> flags_;
};

// The values that a flag or a variable takes: `"auto", "cpu" or "cuda"`, `a whole number from 1 to
// 4096`, `a size (8GiB, 512MiB or a number of bytes) from 4KiB to 1GiB`.
std::string ExpectedText(const FlagSpec& flag);
// And in a file, where texts have quotes and numbers no units.
std::string ExpectedInFile(const FlagSpec& flag);

// Parses `text` in the flag's type and unit, and sets the field. INVALID_ARGUMENT says what was
// found and what was expected, without naming the flag. Ranges and choices are checked later, by
// ValidateConfig() of config.h.
absl::Status SetField(const FlagSpec& flag, absl::string_view text, v1::ServerConfig& config);

// The field's value as a flag would spell it: "8GiB", "30m", "true", "auto".
std::string FieldText(const FlagSpec& flag, const v1::ServerConfig& config);
// The same of the default.
std::string DefaultText(const FlagSpec& flag);

// Range and choices of one field. INVALID_ARGUMENT says what was found and what was expected,
// without naming the flag.
absl::Status CheckField(const FlagSpec& flag, const v1::ServerConfig& config);

}  // namespace mneme
