// A folder of the real disk for an Engine's sessions.
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"
#include "store/file_system.h"
#include "store/session_store.h"

namespace mneme {

// Aborts where the folder cannot be opened. `report`: what was found in it.
inline SessionStorage StorageIn(const std::string& folder, StoreReport& report) {
  SessionStorage storage;
  storage.files = std::make_unique<PosixFileSystem>();
  storage.store = SessionStore::Open(*storage.files, folder, {}, report).value();
  return storage;
}

}  // namespace mneme
