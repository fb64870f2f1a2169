#include "clients/cli/bench_plan.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme::cli {
namespace {

using Kind = LengthDistribution::Kind;

// Lengths shaped as such traffic is: short questions with a long tail; much context and short
// completions; long texts and short answers. Medians in tokens; bench/README.md has the table.
constexpr LengthPreset kPresets[] = {
    {"chat", {Kind::kLogNormal, 120, 1.2, 8192}, {Kind::kLogNormal, 220, 0.8, 2048}},
    {"code", {Kind::kLogNormal, 1500, 0.9, 16384}, {Kind::kLogNormal, 40, 1.0, 1024}},
    {"summary", {Kind::kLogNormal, 3000, 0.6, 32768}, {Kind::kLogNormal, 150, 0.5, 1024}},
};

// Gaps of mean 1 / rate between conversations, and pauses between their turns.
class Times {
 public:
  Times(const PlanOptions& options, std::mt19937_64& random)
      : options_(options),
        random_(random),
        gap_(options.burstiness, std::isinf(options.request_rate)
                                     ? 1
                                     : 1 / (options.request_rate * options.burstiness)),
        pause_(options.think > 0 ? 1 / options.think : 1) {}

  double NextArrival() {
    const double arrival = arrival_;
    if (!std::isinf(options_.request_rate)) arrival_ += gap_(random_);
    return arrival;
  }
  double Think(size_t turn) {
    if (turn == 0 || options_.think <= 0) return 0;
    return options_.think_varies ? pause_(random_) : options_.think;
  }

 private:
  const PlanOptions& options_;
  std::mt19937_64& random_;
  std::gamma_distribution<double> gap_;
  std::exponential_distribution<double> pause_;
  double arrival_ = 0;
};

// Four letters each, which no tokenizer makes nothing of.
std::string RandomWords(int count, std::mt19937_64& random) {
  std::uniform_int_distribution<int> letter('a', 'z');
  std::string text;
  for (int i = 0; i < count; ++i) {
    if (i > 0) text += ' ';
    for (int k = 0; k < 4; ++k) text += static_cast<char>(letter(random));
  }
  return text;
}

}  // namespace

int LengthDistribution::Draw(std::mt19937_64& random) const {
  double length = center;
  if (kind == Kind::kLogNormal) {
    length = std::lognormal_distribution<double>(std::log(center), spread)(random);
  } else {
    const int middle = static_cast<int>(center);
    const int reach = static_cast<int>(center * spread);
    length =
        std::uniform_int_distribution<int>(std::max(1, middle - reach), middle + reach)(random);
  }
  return static_cast<int>(std::clamp(std::round(length), 1.0, static_cast<double>(max)));
}

const LengthPreset* FindPreset(absl::string_view name) {
  for (const LengthPreset& preset : kPresets) {
    if (preset.name == name) return &preset;
  }
  return nullptr;
}

std::vector<PlannedConversation> PlanRandom(const PlanOptions& options) {
  std::mt19937_64 random(options.seed);
  std::uniform_int_distribution<int> token(0, options.vocab - 1);
  Times times(options, random);
  std::string common_words = options.words ? RandomWords(options.common, random) : "";
  if (!common_words.empty()) common_words += ' ';
  std::vector<int32_t> common_tokens;
  for (int k = 0; k < options.common && !options.words; ++k) {
    common_tokens.push_back(token(random));
  }
  std::vector<PlannedConversation> plan(options.conversations);
  for (PlannedConversation& one : plan) {
    one.arrival = times.NextArrival();
    one.turns.resize(options.turns);
    for (size_t i = 0; i < one.turns.size(); ++i) {
      PlannedTurn& turn = one.turns[i];
      turn.think = times.Think(i);
      const int length = options.input.Draw(random);
      if (options.words) {
        turn.text = (i == 0 ? common_words : "") + RandomWords(length, random);
      } else {
        if (i == 0) turn.token_ids = common_tokens;
        for (int k = 0; k < length; ++k) turn.token_ids.push_back(token(random));
      }
      turn.max_tokens = options.output.Draw(random);
    }
  }
  return plan;
}

absl::StatusOr<std::vector<PlannedConversation>> PlanDataset(const PlanOptions& options,
                                                             const Dataset& dataset,
                                                             const TokenCounter& count_tokens) {
  Dataset usable;
  for (const auto& conversation : dataset) {
    if (conversation.size() >= static_cast<size_t>(options.turns)) usable.push_back(conversation);
  }
  if (usable.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("none of its ", dataset.size(), " conversations has ", options.turns,
                     options.turns == 1 ? " prompt" : " turns (--turns)"));
  }
  std::mt19937_64 random(options.seed);
  Times times(options, random);
  std::vector<PlannedConversation> plan(options.conversations);
  for (size_t i = 0; i < plan.size(); ++i) {
    plan[i].arrival = times.NextArrival();
    plan[i].turns.resize(options.turns);
    for (size_t k = 0; k < plan[i].turns.size(); ++k) {
      const DatasetTurn& from = usable[i % usable.size()][k];
      PlannedTurn& turn = plan[i].turns[k];
      turn.think = times.Think(k);
      turn.text = from.prompt;
      turn.max_tokens = options.output.Draw(random);
      if (from.answer.empty()) continue;
      MNEME_ASSIGN_OR_RETURN(const int length, count_tokens(from.answer));
      turn.max_tokens = std::clamp(length, 1, options.output.max);
    }
  }
  return plan;
}

}  // namespace mneme::cli
