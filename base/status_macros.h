// Early return on error for functions that return absl::Status or absl::StatusOr.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// MNEME_RETURN_IF_ERROR(file.Read(&bytes));
#define MNEME_RETURN_IF_ERROR(expression)      \
  do {                                         \
    absl::Status mneme_status_ = (expression); \
    if (!mneme_status_.ok()) [[unlikely]] {    \
      return mneme_status_;                    \
    }                                          \
  } while (false)

// MNEME_ASSIGN_OR_RETURN(const Shape shape, ParseShape(text)); the left side may declare a variable
// or name one. A type that contains a comma needs an alias.
#define MNEME_ASSIGN_OR_RETURN(left, expression) \
  MNEME_ASSIGN_OR_RETURN_IMPL_(MNEME_CONCAT_(mneme_statusor_, __LINE__), left, expression)

#define MNEME_ASSIGN_OR_RETURN_IMPL_(statusor, left, expression) \
  auto statusor = (expression);                                  \
  if (!statusor.ok()) [[unlikely]] {                             \
    return std::move(statusor).status();                         \
  }                                                              \
  left = *std::move(statusor)

#define MNEME_CONCAT_(a, b) MNEME_CONCAT_IMPL_(a, b)
#define MNEME_CONCAT_IMPL_(a, b) a##b
