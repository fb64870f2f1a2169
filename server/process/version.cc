#include "server/process/version.h"

namespace mneme {

absl::string_view ServerVersion() { return MNEME_VERSION; }

}  // namespace mneme
