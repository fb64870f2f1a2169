// Included first by every source of a ThreadSanitizer build that sees messages, and by nothing
// else.
//
// protobuf's map fields have two more members where the sanitizer is on. Distributions ship the
// library built without it, so a map field that our code laid out with them would be read and
// written in the wrong places there. The header is read here as the library was built.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#pragma push_macro("__SANITIZE_THREAD__")
#undef __SANITIZE_THREAD__
#include <google/protobuf/map_field.h>
#pragma pop_macro("__SANITIZE_THREAD__")
