// LOG(INFO) << "listening" << " port=" << port;   CHECK(slot >= 0) << "session " << name;
//
// One line per event on standard error, written with a single write(), so lines of different
// threads never mix:
//   2026-01-02T03:04:05.678Z I engine_loop.cc:12] message key=value
// or, in the JSON format, one object per line with the fields time, severity, file, line, message.
// FATAL and a failed CHECK print and abort: they are for bugs of ours, never for bad input.
//
// CUDA sources include this header, so it names nothing beyond the standard library.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

namespace mneme {

enum class LogSeverity { kInfo = 0, kWarning = 1, kError = 2, kFatal = 3 };
enum class LogFormat { kText, kJson };

// Events below `severity` are dropped without formatting their arguments; FATAL never is.
// Both settings may be changed while other threads log.
void SetMinLogSeverity(LogSeverity severity);
LogSeverity MinLogSeverity();
void SetLogFormat(LogFormat format);

namespace log_internal {

bool IsEnabled(LogSeverity severity);

// Collects one event and writes it when destroyed.
class LogMessage {
 public:
  LogMessage(LogSeverity severity, const char* file, int line)
      : severity_(severity), file_(file), line_(line) {}
  ~LogMessage() { Write(); }
  LogMessage(const LogMessage&) = delete;
  LogMessage& operator=(const LogMessage&) = delete;

  std::ostream& stream() { return stream_; }

 protected:
  void Write();

 private:
  const LogSeverity severity_;
  const char* const file_;
  const int line_;
  std::ostringstream stream_;
};

// The same, and aborts; a type of its own so that the compiler knows that nothing comes after.
class FatalLogMessage final : public LogMessage {
 public:
  FatalLogMessage(const char* file, int line) : LogMessage(LogSeverity::kFatal, file, line) {}
  // For a failed check, whose description is taken over.
  FatalLogMessage(const char* file, int line, std::unique_ptr<std::string> failure)
      : FatalLogMessage(file, line) {
    stream() << *failure;
  }
  [[noreturn]] ~FatalLogMessage();
};

// Lets LOG be an expression of type void in both branches of ?:, whatever is streamed into it.
struct Voidify {
  void operator&(std::ostream&) const {}
};

template <typename T>
void PrintOperand(std::ostream& out, const T& value) {
  if constexpr (std::is_null_pointer_v<T>) {
    out << "nullptr";
  } else if constexpr (std::is_enum_v<T>) {
    out << static_cast<long long>(value);
  } else if constexpr (std::is_integral_v<T> && sizeof(T) == 1) {
    out << static_cast<int>(value);  // A byte is a number here, not a character.
  } else {
    out << value;
  }
}

template <typename A, typename B>
[[gnu::noinline, gnu::cold]] std::unique_ptr<std::string> DescribeFailure(const A& a, const B& b,
                                                                          const char* expression) {
  std::ostringstream out;
  out << "check failed: " << expression << " (";
  PrintOperand(out, a);
  out << " vs. ";
  PrintOperand(out, b);
  out << ") ";
  return std::make_unique<std::string>(out.str());
}

template <typename T>
concept Integer = std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char> &&
                  !std::same_as<T, wchar_t> && !std::same_as<T, char8_t> &&
                  !std::same_as<T, char16_t> && !std::same_as<T, char32_t>;

// Integers of different signedness compare by value, so CHECK_EQ(list.size(), rows) is right.
#define MNEME_DEFINE_CHECK_OP_(name, op, compare)                                            \
  template <typename A, typename B>                                                          \
  std::unique_ptr<std::string> Check##name(const A& a, const B& b, const char* expression) { \
    bool holds;                                                                              \
    if constexpr (Integer<A> && Integer<B>) {                                                \
      holds = std::compare(a, b);                                                            \
    } else {                                                                                 \
      holds = a op b;                                                                        \
    }                                                                                        \
    if (holds) [[likely]]                                                                    \
      return nullptr;                                                                        \
    return DescribeFailure(a, b, expression);                                                \
  }
MNEME_DEFINE_CHECK_OP_(Equal, ==, cmp_equal)
MNEME_DEFINE_CHECK_OP_(NotEqual, !=, cmp_not_equal)
MNEME_DEFINE_CHECK_OP_(Less, <, cmp_less)
MNEME_DEFINE_CHECK_OP_(LessOrEqual, <=, cmp_less_equal)
MNEME_DEFINE_CHECK_OP_(Greater, >, cmp_greater)
MNEME_DEFINE_CHECK_OP_(GreaterOrEqual, >=, cmp_greater_equal)
#undef MNEME_DEFINE_CHECK_OP_

}  // namespace log_internal
}  // namespace mneme

#define LOG(severity) MNEME_LOG_##severity##_
#define MNEME_LOG_INFO_ MNEME_LOG_IF_ENABLED_(::mneme::LogSeverity::kInfo)
#define MNEME_LOG_WARNING_ MNEME_LOG_IF_ENABLED_(::mneme::LogSeverity::kWarning)
#define MNEME_LOG_ERROR_ MNEME_LOG_IF_ENABLED_(::mneme::LogSeverity::kError)
#define MNEME_LOG_FATAL_ ::mneme::log_internal::FatalLogMessage(__FILE__, __LINE__).stream()
#define MNEME_LOG_IF_ENABLED_(severity)       \
  !::mneme::log_internal::IsEnabled(severity) \
      ? (void)0                               \
      : ::mneme::log_internal::Voidify() &    \
            ::mneme::log_internal::LogMessage(severity, __FILE__, __LINE__).stream()

#define CHECK(condition)                                                                \
  (condition) ? (void)0                                                                 \
              : ::mneme::log_internal::Voidify() &                                      \
                    ::mneme::log_internal::FatalLogMessage(__FILE__, __LINE__).stream() \
                        << "check failed: " #condition " "

// A loop that runs once and only on failure, so that a message may be streamed into it.
#define MNEME_CHECK_OP_(name, op, a, b)                                                         \
  while (auto mneme_failure_ = ::mneme::log_internal::Check##name((a), (b), #a " " #op " " #b)) \
  ::mneme::log_internal::FatalLogMessage(__FILE__, __LINE__, std::move(mneme_failure_)).stream()

#define CHECK_EQ(a, b) MNEME_CHECK_OP_(Equal, ==, a, b)
#define CHECK_NE(a, b) MNEME_CHECK_OP_(NotEqual, !=, a, b)
#define CHECK_LT(a, b) MNEME_CHECK_OP_(Less, <, a, b)
#define CHECK_LE(a, b) MNEME_CHECK_OP_(LessOrEqual, <=, a, b)
#define CHECK_GT(a, b) MNEME_CHECK_OP_(Greater, >, a, b)
#define CHECK_GE(a, b) MNEME_CHECK_OP_(GreaterOrEqual, >=, a, b)
// For absl::Status; the status is printed.
#define CHECK_OK(expression)                                    \
  for (auto mneme_status_ = (expression); !mneme_status_.ok();) \
  CHECK(false) << #expression << " is not ok: " << mneme_status_.ToString() << " "

// Checked in debug builds; in others compiled, so that it cannot rot, but never run.
#ifdef NDEBUG
#define MNEME_DCHECK_SKIP_ true ||
#define MNEME_DCHECK_OP_(check, a, b) \
  while (false) check(a, b)
#else
#define MNEME_DCHECK_SKIP_
#define MNEME_DCHECK_OP_(check, a, b) check(a, b)
#endif
#define DCHECK(condition) CHECK(MNEME_DCHECK_SKIP_(condition))
#define DCHECK_EQ(a, b) MNEME_DCHECK_OP_(CHECK_EQ, a, b)
#define DCHECK_NE(a, b) MNEME_DCHECK_OP_(CHECK_NE, a, b)
#define DCHECK_LT(a, b) MNEME_DCHECK_OP_(CHECK_LT, a, b)
#define DCHECK_LE(a, b) MNEME_DCHECK_OP_(CHECK_LE, a, b)
#define DCHECK_GT(a, b) MNEME_DCHECK_OP_(CHECK_GT, a, b)
#define DCHECK_GE(a, b) MNEME_DCHECK_OP_(CHECK_GE, a, b)
