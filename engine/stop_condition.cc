#include "engine/stop_condition.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "engine/status_payload.h"

namespace mneme {

absl::Status ValidateStop(const StopParams& params, int vocab, bool has_tokenizer) {
  if (params.max_tokens < 0) {
    return FieldError("stopping.max_tokens",
                      absl::StrCat("is ", params.max_tokens, ", expected at least 0"));
  }
  if (params.min_tokens < 0 || params.min_tokens > params.max_tokens) {
    return FieldError("stopping.min_tokens",
                      absl::StrCat("is ", params.min_tokens,
                                   ", expected 0 to max_tokens, which is ", params.max_tokens));
  }
  if (params.stop_token_ids.size() > kMaxStopTokens) {
    return FieldError("stopping.stop_token_ids",
                      absl::StrCat("has ", params.stop_token_ids.size(),
                                   " entries, expected at most ", kMaxStopTokens));
  }
  for (const int32_t token : params.stop_token_ids) {
    if (token < 0 || token >= vocab) {
      return FieldError("stopping.stop_token_ids",
                        absl::StrCat("has ", token, ", expected 0 to ", vocab - 1));
    }
  }
  const std::vector<std::string>& strings = params.stop_strings;
  if (strings.size() > kMaxStopStrings) {
    return FieldError(
        "stopping.stop_strings",
        absl::StrCat("has ", strings.size(), " entries, expected at most ", kMaxStopStrings));
  }
  for (const std::string& text : strings) {
    if (text.empty() || text.size() > kMaxStopStringBytes) {
      return FieldError("stopping.stop_strings",
                        absl::StrCat("has an entry of ", text.size(), " bytes, expected 1 to ",
                                     kMaxStopStringBytes));
    }
    if (!IsValidUtf8(text)) {
      return FieldError(
          "stopping.stop_strings",
          absl::StrCat("has an entry that is not valid UTF-8 at byte ", FirstInvalidUtf8(text)));
    }
  }
  if (!strings.empty() && !has_tokenizer) {
    return FieldError("stopping.stop_strings",
                      "needs a tokenizer, and this model has none; use stop_token_ids");
  }
  return absl::OkStatus();
}

StopRules::StopRules(const StopParams& params, std::span<const int32_t> end_tokens)
    : max_tokens_(params.max_tokens),
      min_tokens_(params.min_tokens),
      keep_stop_string_(params.include_stop_in_output),
      stop_tokens_(params.stop_token_ids.begin(), params.stop_token_ids.end()) {
  if (!params.ignore_eos) {
    for (const int32_t token : end_tokens) {
      if (!IsStopToken(token)) stop_tokens_.push_back(token);
    }
  }
  for (const std::string& text : params.stop_strings) {
    StopString string = {text, std::vector<int>(text.size() + 1, 0)};
    int border = 0;
    for (size_t i = 1; i < text.size(); ++i) {
      while (border > 0 && text[i] != text[border]) border = string.fallback[border];
      if (text[i] == text[border]) ++border;
      string.fallback[i + 1] = border;
    }
    strings_.push_back(std::move(string));
  }
}

const StopRules::StopString* StopCondition::Advance(char byte) {
  const StopRules::StopString* complete = nullptr;
  for (size_t i = 0; i < states_.size(); ++i) {
    const StopRules::StopString& string = rules_->strings_[i];
    int& state = states_[i];
    // A complete string that did not end the choice (min_tokens) goes on with its border.
    if (state == static_cast<int>(string.text.size())) state = string.fallback[state];
    while (state > 0 && byte != string.text[state]) state = string.fallback[state];
    if (byte == string.text[state]) ++state;
    if (state == static_cast<int>(string.text.size()) &&
        (complete == nullptr || string.text.size() > complete->text.size())) {
      complete = &string;
    }
  }
  return complete;
}

StopCondition::Outcome StopCondition::OnToken(int32_t token, absl::string_view text,
                                              std::string& shown) {
  ++generated_;
  if (states_.empty()) {
    shown.append(text.data(), text.size());
  } else {
    for (const char byte : text) {
      held_.push_back(byte);
      const StopRules::StopString* complete = Advance(byte);
      if (complete == nullptr || generated_ < rules_->min_tokens_) continue;
      const size_t cut = rules_->keep_stop_string_ ? 0 : complete->text.size();
      shown.append(held_, 0, held_.size() - cut);
      held_.clear();
      return {FinishReason::kStop, complete->text};
    }
    // Text that may still become a stop string is kept; a complete one that was passed over counts
    // as text.
    size_t keep = 0;
    for (size_t i = 0; i < states_.size(); ++i) {
      const StopRules::StopString& string = rules_->strings_[i];
      const bool whole = states_[i] == static_cast<int>(string.text.size());
      keep = std::max<size_t>(keep, whole ? string.fallback[states_[i]] : states_[i]);
    }
    shown.append(held_, 0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
  }
  if (rules_->IsStopToken(token)) {
    Flush(shown);
    return {FinishReason::kStop, absl::StrCat(token)};
  }
  if (generated_ >= rules_->max_tokens_) {
    Flush(shown);
    return {FinishReason::kLength, ""};
  }
  return {};
}

void StopCondition::Flush(std::string& shown) {
  shown += held_;
  held_.clear();
}

}  // namespace mneme
