// One event whose parts machines tell apart:
//
//   LogFields("request").Add("id", id).Add("tokens", 3).Write(LogSeverity::kInfo);
//
//   2026-01-02T03:04:05.678Z I request id=req-1 tokens=3
//   {"time":"2026-01-02T03:04:05.678Z","severity":"INFO","event":"request","id":"req-1","tokens":3}
//
// Text for people goes before the parts: Message("it is late") gives "request: it is late id=..."
// and a field "message".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/log.h"

namespace mneme {

class LogFields {
 public:
  explicit LogFields(const char* event) : event_(event) {}

  LogFields& Message(absl::string_view text);
  // Names are plain words. A text that is empty is left out.
  LogFields& Add(const char* name, absl::string_view text);
  LogFields& Add(const char* name, int64_t number);
  LogFields& AddMilliseconds(const char* name, double milliseconds);  // to the microsecond

  // Unless MinLogSeverity() is above `severity`.
  void Write(LogSeverity severity) const;
  // Whatever MinLogSeverity() is by now. False: dropped, as lines wait that nobody reads.
  bool WriteAlways(LogSeverity severity) const;
  // The line as it is written, with its line break.
  std::string Text(LogSeverity severity) const;

 private:
  struct Field {
    const char* name;
    std::string value;
    bool is_text;
  };

  const char* event_;
  std::string message_;
  std::vector<Field> fields_;
};

}  // namespace mneme
