// Standard input, output and error.
#pragma once

namespace mneme {

// Sees to it that all three are open, with /dev/null in the place of those that were closed, so
// that no file or connection that is opened later gets their numbers, and with them what is
// printed. To be called first of all, with main()'s arguments.
//
// Libraries may have opened files of their own under these numbers before main() was reached; then
// the program is started once more, in this process.
void OpenStandardStreams(char** argv);

}  // namespace mneme
