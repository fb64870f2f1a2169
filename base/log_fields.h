// One event whose parts machines tell apart:
//
//   LogFields("request").Add("id", id).Add("tokens", 3).Write(LogSeverity::kInfo);
//
//   2026-01-02T03:04:05.678Z I request id=req-1 tokens=3
//   {"time":"2026-01-02T03:04:05.678Z","severity":"INFO","event":"request","id":"req-1","tokens":3}
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace mneme {

class LogFields {
 public:
  explicit LogFields(const char* event) : event_(event) {}

  // Names are plain words. A text that is empty is left out.
  LogFields& Add(const char* name, std::string_view text);
  LogFields& Add(const char* name, int64_t number);
  LogFields& AddMilliseconds(const char* name, double milliseconds);  // to the microsecond

  // Whatever MinLogSeverity() is: that was for the caller to ask when the event came about.
  void Write(LogSeverity severity) const;

 private:
  struct Field {
    const char* name;
    std::string value;
    bool is_text;
  };

  const char* event_;
  std::vector<Field> fields_;
};

}  // namespace mneme
