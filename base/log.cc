#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/log_fields.h"

namespace mneme {
namespace {

// The only mutable globals of the project: a log line must be possible everywhere, also before
// main() and while other objects are being destroyed.
constinit std::atomic<LogSeverity> min_severity{LogSeverity::kInfo};
constinit std::atomic<LogFormat> log_format{LogFormat::kText};

std::string Timestamp() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  tm utc;
  gmtime_r(&now.tv_sec, &utc);
  char text[sizeof("2026-01-02T03:04:05.678Z") + 16];
  const size_t length = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text + length, sizeof(text) - length, ".%03dZ",
                static_cast<int>(now.tv_nsec / 1'000'000));
  return text;
}

absl::string_view BaseName(absl::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == absl::string_view::npos ? path : path.substr(slash + 1);
}

// A line break inside a message would start what looks like another event.
void AppendOneLine(absl::string_view message, std::string* line) {
  for (const char c : message) {
    if (c == '\n') {
      absl::StrAppend(line, "\\n");
    } else if (c == '\r') {
      absl::StrAppend(line, "\\r");
    } else {
      line->push_back(c);
    }
  }
}

void AppendJsonString(absl::string_view text, std::string* line) {
  line->push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      line->push_back('\\');
      line->push_back(c);
    } else if (c == '\n') {
      absl::StrAppend(line, "\\n");
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
      absl::StrAppend(line, escape);
    } else {
      line->push_back(c);
    }
  }
  line->push_back('"');
}

const char* SeverityName(LogSeverity severity) {
  static constexpr const char* kNames[] = {"INFO", "WARNING", "ERROR", "FATAL"};
  return kNames[static_cast<int>(severity)];
}

// Whether a text needs no quotes for "name=text" to be read again.
bool IsWord(absl::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) <= 0x20 || c == '"' || c == '=' || c == 0x7f) return false;
  }
  return !text.empty();
}

void WriteAll(absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return;  // Nobody is left to tell.
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

void SetMinLogSeverity(LogSeverity severity) {
  min_severity.store(severity, std::memory_order_relaxed);
}

LogSeverity MinLogSeverity() { return min_severity.load(std::memory_order_relaxed); }

void SetLogFormat(LogFormat format) { log_format.store(format, std::memory_order_relaxed); }

namespace log_internal {

bool IsEnabled(LogSeverity severity) { return severity >= MinLogSeverity(); }

FatalLogMessage::~FatalLogMessage() {
  Write();
  std::abort();
}

void LogMessage::Write() {
  const char* name = SeverityName(severity_);
  std::string message = stream_.str();
  while (!message.empty() && (message.back() == ' ' || message.back() == '\n')) message.pop_back();
  std::string line;
  line.reserve(message.size() + 80);
  if (log_format.load(std::memory_order_relaxed) == LogFormat::kJson) {
    absl::StrAppend(&line, "{\"time\":\"", Timestamp(), "\",\"severity\":\"", name,
                    "\",\"file\":\"", BaseName(file_), "\",\"line\":", line_, ",\"message\":");
    AppendJsonString(message, &line);
    absl::StrAppend(&line, "}\n");
  } else {
    absl::StrAppend(&line, Timestamp(), " ", absl::string_view(name, 1), " ", BaseName(file_), ":",
                    line_, "] ");
    AppendOneLine(message, &line);
    line.push_back('\n');
  }
  WriteAll(line);
}

}  // namespace log_internal

LogFields& LogFields::Message(absl::string_view text) {
  message_ = std::string(text);
  return *this;
}

LogFields& LogFields::Add(const char* name, absl::string_view text) {
  if (!text.empty()) fields_.push_back({name, std::string(text), /*is_text=*/true});
  return *this;
}

LogFields& LogFields::Add(const char* name, int64_t number) {
  fields_.push_back({name, absl::StrCat(number), /*is_text=*/false});
  return *this;
}

LogFields& LogFields::AddMilliseconds(const char* name, double milliseconds) {
  fields_.push_back({name, absl::StrFormat("%.3f", milliseconds), /*is_text=*/false});
  return *this;
}

void LogFields::Write(LogSeverity severity) const {
  if (severity >= MinLogSeverity()) WriteAlways(severity);
}

void LogFields::WriteAlways(LogSeverity severity) const {
  const char* name = SeverityName(severity);
  std::string line;
  if (log_format.load(std::memory_order_relaxed) == LogFormat::kJson) {
    absl::StrAppend(&line, "{\"time\":\"", Timestamp(), "\",\"severity\":\"", name,
                    "\",\"event\":\"", event_, "\"");
    if (!message_.empty()) {
      absl::StrAppend(&line, ",\"message\":");
      AppendJsonString(message_, &line);
    }
    for (const Field& field : fields_) {
      absl::StrAppend(&line, ",\"", field.name, "\":");
      if (field.is_text) {
        AppendJsonString(field.value, &line);
      } else {
        line.append(field.value);
      }
    }
    line.append("}\n");
  } else {
    absl::StrAppend(&line, Timestamp(), " ", absl::string_view(name, 1), " ", event_);
    if (!message_.empty()) {
      absl::StrAppend(&line, ": ");
      AppendOneLine(message_, &line);
    }
    for (const Field& field : fields_) {
      absl::StrAppend(&line, " ", field.name, "=");
      if (IsWord(field.value)) {
        line.append(field.value);
      } else {
        AppendJsonString(field.value, &line);
      }
    }
    line.push_back('\n');
  }
  WriteAll(line);
}

}  // namespace mneme
