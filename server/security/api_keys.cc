#include "server/security/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "engine/request_check.h"

namespace mneme {
namespace {

constexpr absl::string_view kKeyPrefix = "mneme-";
constexpr absl::string_view kHashPrefix = "sha256-";
constexpr size_t kKeyBytes = 32;
constexpr size_t kMaxNameBytes = 64;

// The most of a file's text that messages show: less than a hash, which may be anywhere in it where
// a line break is missing or in the wrong place.
constexpr size_t kMaxShownBytes = 32;

std::string Shown(absl::string_view text) {
  const bool is_whole = text.size() <= kMaxShownBytes;
  return absl::StrCat(absl::CHexEscape(text.substr(0, kMaxShownBytes)), is_whole ? "" : "...");
}

std::array<uint8_t, 32> Sha256(absl::string_view text) {
  std::array<uint8_t, 32> digest;
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(), digest.data());
  return digest;
}

bool IsHexDigit(char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); }

absl::Status SetLimit(absl::string_view option, absl::string_view text, int64_t most,
                      int64_t& limit) {
  if (absl::SimpleAtoi(text, &limit) && limit >= 0 && limit <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("option ", option, ": \"", Shown(text), "\" is not a number from 0 to ", most));
}

absl::Status SetOption(absl::string_view option, Caller& caller, bool& has_role) {
  const std::vector<absl::string_view> parts = absl::StrSplit(option, absl::MaxSplits('=', 1));
  const absl::string_view name = parts[0];
  if (name == "admin" || name == "monitor") {
    if (parts.size() > 1) {
      return absl::InvalidArgumentError(absl::StrCat("option ", name, " takes no value"));
    }
    if (std::exchange(has_role, true)) {
      return absl::InvalidArgumentError("admin and monitor exclude each other");
    }
    caller.role = name == "admin" ? Role::kAdmin : Role::kMonitor;
    return absl::OkStatus();
  }
  const absl::string_view value = parts.size() > 1 ? parts[1] : "";
  int64_t limit = 0;
  if (name == "streams") {
    MNEME_RETURN_IF_ERROR(SetLimit(name, value, 1000000, limit));
    caller.limits.max_streams = static_cast<int>(limit);
  } else if (name == "sessions") {
    MNEME_RETURN_IF_ERROR(SetLimit(name, value, 10000000, limit));
    caller.limits.max_sessions = static_cast<int>(limit);
  } else if (name == "tokens-per-minute") {
    MNEME_RETURN_IF_ERROR(SetLimit(name, value, int64_t{1} << 53, limit));
    caller.limits.tokens_per_minute = limit;
  } else if (name == "priority") {
    MNEME_RETURN_IF_ERROR(SetLimit(name, value, kMaxPriority, limit));
    caller.limits.max_priority = static_cast<int>(limit);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown option \"", Shown(name),
                     "\", expected streams=N, sessions=N, tokens-per-minute=N, priority=N, admin "
                     "or monitor"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string NewApiKey() {
  uint8_t bytes[kKeyBytes];
  CHECK(RAND_bytes(bytes, sizeof(bytes)) == 1) << "no random bytes";
  const std::string text = absl::WebSafeBase64Escape(
      absl::string_view(reinterpret_cast<const char*>(bytes), sizeof(bytes)));
  OPENSSL_cleanse(bytes, sizeof(bytes));
  return absl::StrCat(kKeyPrefix, text);
}

std::string ApiKeyLine(absl::string_view name, absl::string_view key) {
  const std::array<uint8_t, 32> digest = Sha256(key);
  return absl::StrCat(name, ":", kHashPrefix,
                      absl::BytesToHexString(absl::string_view(
                          reinterpret_cast<const char*>(digest.data()), digest.size())));
}

absl::Status CheckKeyName(absl::string_view name) {
  const bool fits = !name.empty() && name.size() <= kMaxNameBytes &&
                    std::all_of(name.begin(), name.end(), [](char c) {
                      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' ||
                             c == '_' || c == '-';
                    });
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", Shown(name), "\" is no name of a key, expected 1 to 64 of A-Z a-z 0-9 . _ -"));
}

absl::StatusOr<ApiKeys> ApiKeys::Parse(absl::string_view text, absl::string_view source,
                                       const KeyLimits& defaults) {
  ApiKeys keys;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const absl::Status added = keys.AddLine(line, defaults);
    if (!added.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(source, ":", number, ": ", added.message()));
    }
  }
  return keys;
}

absl::Status ApiKeys::AddLine(absl::string_view line, const KeyLimits& defaults) {
  const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
  if (parts.size() < 2) {
    return absl::InvalidArgumentError("expected name:hash[:options]");
  }
  MNEME_RETURN_IF_ERROR(CheckKeyName(parts[0]));
  absl::string_view hash = parts[1];
  if (!absl::ConsumePrefix(&hash, kHashPrefix) || hash.size() != 2 * sizeof(Digest) ||
      !std::all_of(hash.begin(), hash.end(), IsHexDigit)) {
    return absl::InvalidArgumentError(absl::StrCat("the hash of ", Shown(parts[0]),
                                                   " is not sha256- and 64 hexadecimal digits; "
                                                   "--hash-api-key makes one"));
  }
  Caller caller{.owner = std::string(parts[0]), .limits = defaults};
  bool has_role = false;
  if (parts.size() > 2) {
    for (const absl::string_view option : absl::StrSplit(parts[2], ',')) {
      MNEME_RETURN_IF_ERROR(SetOption(option, caller, has_role));
    }
  }
  CallerRef& named = names_[caller.owner];
  if (named == nullptr) {
    named = std::make_shared<const Caller>(std::move(caller));
  } else if (named->role != caller.role || named->limits != caller.limits) {
    return absl::InvalidArgumentError(
        absl::StrCat(Shown(parts[0]),
                     " has other options than on its line before; keys of one name share them"));
  }
  Digest digest;
  const std::string bytes = absl::HexStringToBytes(hash);
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  const auto same = [&](const Entry& entry) { return entry.digest == digest; };
  if (std::any_of(entries_.begin(), entries_.end(), same)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the key of ", Shown(parts[0]), " is on a line before, too"));
  }
  entries_.push_back({.digest = digest, .caller = named});
  return absl::OkStatus();
}

absl::Status ApiKeys::Add(absl::string_view key, Caller caller) {
  CallerRef& named = names_[caller.owner];
  if (named != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("there is a key named ", caller.owner));
  }
  named = std::make_shared<const Caller>(std::move(caller));
  entries_.push_back({.digest = Sha256(key), .caller = named});
  return absl::OkStatus();
}

CallerRef ApiKeys::Find(absl::string_view key) const {
  const Digest digest = Sha256(key);
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) found = &entry;
  }
  return found == nullptr ? nullptr : found->caller;
}

CallerRef ApiKeys::Named(const std::string& name) const {
  const auto it = names_.find(name);
  return it == names_.end() ? nullptr : it->second;
}

}  // namespace mneme
