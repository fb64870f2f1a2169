// A session that goes back to where a conversation was edited.
#pragma once

#include <memory>
#include <optional>

#include "engine/sessions/stored_states.h"
#include "kernels/backend.h"

namespace mneme {

// A snapshot on its way from the store to the slab of a request that runs, which has no row
// meanwhile.
struct EditLoad {
  std::optional<StoredState> read;
  std::unique_ptr<Transfer> transfer;  // null: it has not begun
};

}  // namespace mneme
