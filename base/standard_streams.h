// Standard input, output and error.
#pragma once

namespace mneme {

// Opens /dev/null in the place of those that are closed, so that no file or connection that is
// opened later gets their numbers, and with them what is printed. To be called first of all.
void OpenStandardStreams();

}  // namespace mneme
