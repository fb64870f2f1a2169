// Who can reach the addresses that --host may name.
#pragma once

#include "absl/strings/string_view.h"

namespace mneme {

// Whether `host` means every interface of the machine.
bool IsAllInterfaces(absl::string_view host);

// Whether `host` is an address of this machine that others cannot reach.
bool IsLoopback(absl::string_view host);

}  // namespace mneme
