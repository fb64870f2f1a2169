#include "server/requests/trace_context.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace mneme {
namespace {

constexpr size_t kLength = 55;  // "00-" 32 "-" 16 "-" 2
constexpr size_t kMaxStateMembers = 32;
constexpr size_t kMaxStateLength = 512;

bool IsHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsId(absl::string_view text) {
  return IsHex(text) && text.find_first_not_of('0') != absl::string_view::npos;
}

// key = ( lcalpha / DIGIT ) 0*255( lcalpha / DIGIT / "_" / "-" / "*" / "/" / "@" )
bool IsStateKey(absl::string_view key) {
  const auto is_first = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); };
  return !key.empty() && key.size() <= 256 && is_first(key.front()) &&
         std::all_of(key.begin(), key.end(), [&](char c) {
           return is_first(c) || c == '_' || c == '-' || c == '*' || c == '/' || c == '@';
         });
}

// Printable ASCII but "," and "=", not ending in a space.
bool IsStateValue(absl::string_view value) {
  return !value.empty() && value.size() <= 256 && value.back() != ' ' &&
         std::all_of(value.begin(), value.end(),
                     [](char c) { return c >= 0x20 && c <= 0x7e && c != ',' && c != '='; });
}

}  // namespace

std::string TraceContext::TraceParent() const {
  return absl::StrCat("00-", trace_id, "-", span_id, "-", flags);
}

bool IsTraceState(absl::string_view tracestate) {
  if (tracestate.size() > kMaxStateLength) return false;
  std::set<absl::string_view> keys;
  for (const absl::string_view part : absl::StrSplit(tracestate, ',')) {
    const absl::string_view member = absl::StripAsciiWhitespace(part);
    if (member.empty()) continue;
    const size_t equals = member.find('=');
    if (equals == absl::string_view::npos || !IsStateKey(member.substr(0, equals)) ||
        !IsStateValue(member.substr(equals + 1)) || !keys.insert(member.substr(0, equals)).second) {
      return false;
    }
  }
  return !keys.empty() && keys.size() <= kMaxStateMembers;
}

TraceContext ReadTraceContext(absl::string_view traceparent, absl::string_view tracestate) {
  const absl::string_view text = absl::StripAsciiWhitespace(traceparent);
  if (text.size() < kLength) return {};
  const absl::string_view version = text.substr(0, 2), trace_id = text.substr(3, 32),
                          parent_id = text.substr(36, 16), flags = text.substr(53, 2);
  const bool separated = text[2] == '-' && text[35] == '-' && text[52] == '-';
  // A later version may say more behind these fields, never in front of them.
  const bool ends = text.size() == kLength || (version != "00" && text[kLength] == '-');
  if (!separated || !ends || !IsHex(version) || version == "ff" || !IsId(trace_id) ||
      !IsId(parent_id) || !IsHex(flags)) {
    return {};
  }
  absl::BitGen random;
  TraceContext context;
  context.trace_id = std::string(trace_id);
  context.parent_id = std::string(parent_id);
  context.span_id = absl::StrFormat("%016x", absl::Uniform<uint64_t>(random, 1, UINT64_MAX));
  context.flags = std::string(flags);
  if (IsTraceState(tracestate)) context.state = std::string(tracestate);
  return context;
}

}  // namespace mneme
