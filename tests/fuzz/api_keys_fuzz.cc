// The file of API keys: whatever it says, an error names a line and shows no hash.

#include <cstdint>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "server/security/api_keys.h"
#include "tests/fuzz/bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using mneme::Require;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  // The seeds' key; one that was found must be the one that a line says.
  constexpr absl::string_view kKey = "key-of-alice";
  constexpr absl::string_view kDigest =
      "4ee741adff2e0a6b7e26794e2b0d1f62a5086a31050c1096d717fa1170edbf9e";
  const absl::StatusOr<mneme::ApiKeys> keys = mneme::ApiKeys::Parse(text, "keys", {});
  if (!keys.ok()) {
    Require(absl::StartsWith(keys.status().message(), "keys"), "an error says which file");
    Require(!absl::StrContains(keys.status().message(), kDigest), "an error shows no hash");
    return 0;
  }
  for (const absl::string_view key : {kKey, text.substr(0, 40), absl::string_view()}) {
    const mneme::CallerRef caller = keys->Find(key);
    if (caller == nullptr) continue;
    Require(mneme::CheckKeyName(caller->owner).ok(), "a caller's name is one");
    Require(keys->Named(caller->owner) != nullptr, "who has a key is known by name");
    const std::string line = mneme::ApiKeyLine(caller->owner, key);
    Require(absl::StrContains(absl::AsciiStrToLower(text), line.substr(line.find("sha256-"))),
            "a key is found by its own hash");
  }
  Require(keys->size() <= size / 64, "a key takes a hash");
  return 0;
}
