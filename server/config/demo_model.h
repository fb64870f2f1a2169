// The model that comes with Mneme, for those who name none.
#pragma once

#include <string>

#include "server/config/config.h"

namespace mneme {

// The name that clients see, unless --served-model-name says otherwise.
inline constexpr char kDemoModelName[] = "mneme-demo";

// Where it lies, seen from the folder of the programs: installed, and in a build, where that is a
// link to the sources.
inline constexpr char kDemoModelPath[] = "../share/mneme/models/demo";

// Where something is to be served or planned and nobody named a model, names the demo model, if
// there is one, and sets `line.serves_demo`.
void UseDemoModel(const std::string& program_folder, CommandLine& line);

}  // namespace mneme
