// The plan of a load test, which says what is sent and when: arrivals, lengths and prompts, all
// drawn from one seed before the first request is sent.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace mneme::cli {

// How long prompts or answers are, in tokens.
struct LengthDistribution {
  enum class Kind {
    kUniform,    // center * (1 - spread) to center * (1 + spread); spread 0: all the same
    kLogNormal,  // median `center`, standard deviation `spread` of the logarithm
  };
  Kind kind = Kind::kUniform;
  double center = 1;
  double spread = 0;
  int max = 1 << 20;  // longer ones are cut to it; at least 1 token in any case

  int Draw(std::mt19937_64& random) const;
};

// Lengths under a name: "chat", "code", "summary".
struct LengthPreset {
  absl::string_view name;
  LengthDistribution input;
  LengthDistribution output;
};
// Null if there is none of that name.
const LengthPreset* FindPreset(absl::string_view name);

struct PlannedTurn {
  std::vector<int32_t> token_ids;  // the prompt, or, if empty, `text`
  std::string text;
  int max_tokens = 1;
  double think = 0;  // seconds after the answer of the turn before
};

// One request, or several that follow each other in a session.
struct PlannedConversation {
  double arrival = 0;  // of its first turn, seconds after the start
  std::vector<PlannedTurn> turns;
};

struct PlanOptions {
  uint64_t seed = 0;
  int conversations = 1;
  int turns = 1;
  double request_rate = 0;    // conversations per second; infinity: all at once
  double burstiness = 1;      // shape of the gaps' gamma distribution; 1: a Poisson process
  double think = 0;           // mean seconds between an answer and the next turn
  bool think_varies = false;  // exponentially distributed instead of always the same
  LengthDistribution input;
  LengthDistribution output;
  int common = 0;      // tokens that all random prompts begin with, beside those of `input`
  int vocab = 1;       // random prompts are of tokens below it
  bool words = false;  // random prompts are text: as many words of letters
};

// Random prompts.
std::vector<PlannedConversation> PlanRandom(const PlanOptions& options);

// From the conversations of a file (see ReadDataset), from its beginning on and again if it is too
// short. Answers are as long as the file's, where it has them, else as `options.output` says.
// `count_tokens` tells how long those are.
using TokenCounter = std::function<absl::StatusOr<int>(const std::string&)>;
struct DatasetTurn {
  std::string prompt;
  std::string answer;  // may be empty
};
using Dataset = std::vector<std::vector<DatasetTurn>>;
absl::StatusOr<std::vector<PlannedConversation>> PlanDataset(const PlanOptions& options,
                                                             const Dataset& dataset,
                                                             const TokenCounter& count_tokens);

// A file of conversations: ShareGPT's JSON, a list of {"conversations": [{"from": "human" | "gpt",
// "value": TEXT}, ...]}, or JSONL with a {"prompt": TEXT} or a {"messages": [{"role", "content"}]}
// on each line. Conversations without a prompt are left out. INVALID_ARGUMENT names file and line.
absl::StatusOr<Dataset> ReadDataset(const std::string& path);

}  // namespace mneme::cli
