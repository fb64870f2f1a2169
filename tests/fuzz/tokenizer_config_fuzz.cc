// tokenizer_config.json from a stranger.
#include <cstdint>

#include "base/log.h"
#include "tokenizers/tokenizer_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = mneme::ParseTokenizerConfig(text, "tokenizer_config.json");
  if (!config.ok()) {
    CHECK(config.status().message().size() < 1000) << "a message is for people";
    return 0;
  }
  if (!config->added_tokens.has_value()) return 0;
  for (const auto& token : *config->added_tokens) CHECK_GE(token.id, 0);
  return 0;
}
