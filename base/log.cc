#include "base/log.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/line_writer.h"
#include "base/log_fields.h"
#include "base/log_writer.h"
#include "base/one_line.h"

namespace mneme {
namespace {

// The only mutable globals of the project: a log line must be possible everywhere, also before
// main() and while other objects are being destroyed.
constinit std::atomic<LogSeverity> min_severity{LogSeverity::kInfo};
constinit std::atomic<LogFormat> log_format{LogFormat::kText};
ABSL_CONST_INIT absl::Mutex writer_mu(absl::kConstInit);
LineWriter* writer ABSL_GUARDED_BY(writer_mu) = nullptr;
// A writer has ended whose reader was stuck: who wrote by himself would be, too.
bool reader_is_stuck ABSL_GUARDED_BY(writer_mu) = false;
// Lines that were dropped by writers that have ended, and after them.
constinit std::atomic<int64_t> dropped_before{0};

// For the line that says why the process aborts.
constexpr absl::Duration kLastWords = absl::Seconds(1);

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

bool HasRoomWithin(absl::Duration timeout, int fd) {
  pollfd room = {.fd = fd, .events = POLLOUT, .revents = 0};
  return poll(&room, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) > 0;
}

// False: the line was dropped. A fatal one is not, unless nobody reads.
bool Emit(std::string line, bool is_fatal = false) {
  {
    absl::ReaderMutexLock lock(&writer_mu);
    if (writer != nullptr) {
      if (!is_fatal) return writer->Write(std::move(line));
      writer->WriteInAnyCase(std::move(line));
      return true;
    }
    if (reader_is_stuck) {
      dropped_before.fetch_add(1);
      return false;
    }
  }
  if (is_fatal && !HasRoomWithin(kLastWords, STDERR_FILENO)) return false;
  return WriteLine(STDERR_FILENO, line);  // an error has nobody left to be told to
}

std::string DescribeGap(int64_t lines) {
  return LogFields("log_lines_dropped")
      .Message(absl::StrCat(lines, " lines were dropped: standard error took them too slowly"))
      .Add("lines", lines)
      .Text(LogSeverity::kWarning);
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
  FlushLog(kLastWords);
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
    absl::StrAppend(&line, OneLine(message), "\n");
  }
  Emit(std::move(line), severity_ == LogSeverity::kFatal);
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
  if (severity >= MinLogSeverity()) (void)WriteAlways(severity);
}

bool LogFields::WriteAlways(LogSeverity severity) const { return Emit(Text(severity)); }

std::string LogFields::Text(LogSeverity severity) const {
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
      absl::StrAppend(&line, ": ", OneLine(message_));
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
  return line;
}

LogWriter::LogWriter(std::unique_ptr<LineWriter> lines) : lines_(std::move(lines)) {
  absl::MutexLock lock(&writer_mu);
  writer = lines_.get();
  reader_is_stuck = false;
}

LogWriter::~LogWriter() {
  const bool is_flushed = lines_->Flush(kLastWords);
  {
    absl::MutexLock lock(&writer_mu);
    writer = nullptr;
    reader_is_stuck = !is_flushed;
    dropped_before.fetch_add(lines_->dropped());
  }
}

absl::StatusOr<std::unique_ptr<LogWriter>> LogWriter::Start(int fd, LineWriterOptions options) {
  if (!options.describe_gap) options.describe_gap = DescribeGap;
  absl::StatusOr<std::unique_ptr<LineWriter>> lines = LineWriter::Start(fd, std::move(options));
  if (!lines.ok()) return lines.status();
  return std::unique_ptr<LogWriter>(new LogWriter(*std::move(lines)));
}

void LogPlainLine(absl::string_view text) { (void)Emit(OneLine(text) + "\n"); }

bool FlushLog(absl::Duration timeout) {
  absl::ReaderMutexLock lock(&writer_mu);  // beside those who log
  return writer == nullptr || writer->Flush(timeout);
}

int64_t DroppedLogLines() {
  absl::ReaderMutexLock lock(&writer_mu);
  return dropped_before.load() + (writer == nullptr ? 0 : writer->dropped());
}

}  // namespace mneme
