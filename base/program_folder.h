// Where the running program lies, to find what was installed with it.
#pragma once

#include <string>

namespace mneme {

// The folder of the executable, links resolved; "" where the system does not tell.
std::string ProgramFolder();

}  // namespace mneme
