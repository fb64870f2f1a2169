#include "engine/sessions/logged_facts.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "store/record.h"

namespace mneme {
namespace {

// Version 2 has the opening, version 3 sent_before, version 4 the room for engrams and the last
// range that was forgotten, version 5 all of these.
constexpr uint64_t kFactsVersion = 5;

}  // namespace

std::string LoggedFacts::Encode() const {
  RecordWriter values;
  values.Varint(kFactsVersion)
      .Signed(fed.bytes)
      .Fixed64(fed.hash)
      .Varint(has_text ? 1 : 0)
      .Signed(evictions)
      .Fixed64(arithmetic)
      .Signed(prompted)
      .Varint(fed_pending ? 1 : 0)
      .Varint(dropped_pending ? 1 : 0)
      .Signed(opening.bytes)
      .Fixed64(opening.hash)
      .Varint(sent_before ? 1 : 0)
      .Varint(static_cast<uint64_t>(engram_capacity))
      .Varint(may_have_evicted ? 1 : 0)
      .Signed(forgotten.begin)
      .Signed(forgotten.end)
      .Signed(forgotten.at)
      .Varint(forgotten.all.size());
  for (const auto& [begin, end] : forgotten.all) values.Signed(begin).Signed(end);
  return std::move(values).Values();
}

absl::StatusOr<LoggedFacts> LoggedFacts::Decode(absl::string_view text) {
  LoggedFacts facts;
  if (text.empty()) return facts;  // of a session that was fed nothing
  RecordReader values(text);
  const uint64_t version = values.Varint();
  if (version > kFactsVersion) {
    return absl::FailedPreconditionError(absl::StrCat("facts of a session have version ", version,
                                                      ", expected at most ", kFactsVersion));
  }
  facts.fed.bytes = values.Signed();
  facts.fed.hash = values.Fixed64();
  facts.has_text = values.Varint() != 0;
  facts.evictions = static_cast<int32_t>(values.Signed());
  facts.arithmetic = values.Fixed64();
  facts.prompted = values.Signed();
  facts.fed_pending = values.Varint() != 0;
  facts.dropped_pending = values.Varint() != 0;
  if (version >= 2) {
    facts.opening.bytes = values.Signed();
    facts.opening.hash = values.Fixed64();
  }
  if (version >= 3) facts.sent_before = values.Varint() != 0;
  if (version >= 4) {
    facts.engram_capacity = static_cast<int>(values.Varint());
    facts.may_have_evicted = values.Varint() != 0;
    facts.forgotten.begin = values.Signed();
    facts.forgotten.end = values.Signed();
    facts.forgotten.at = values.Signed();
  }
  if (version >= 5) {
    facts.forgotten.all.resize(values.Count(2));
    for (auto& [begin, end] : facts.forgotten.all) {
      begin = values.Signed();
      end = values.Signed();
    }
  } else if (facts.forgotten.at > 0) {
    facts.forgotten.all = {{facts.forgotten.begin, facts.forgotten.end}};
  }
  MNEME_RETURN_IF_ERROR(values.End("facts of a session"));
  return facts;
}

}  // namespace mneme
