#include "server/config/demo_model.h"

#include <filesystem>
#include <system_error>

namespace mneme {

void UseDemoModel(const std::string& program_folder, CommandLine& line) {
  const bool wants_model =
      line.action == ServerAction::kServe || line.action == ServerAction::kPlan;
  v1::ModelSection& model = *line.config.mutable_model();
  if (!wants_model || line.names_model || !model.path().empty() || program_folder.empty()) return;
  const std::filesystem::path folder =
      (std::filesystem::path(program_folder) / kDemoModelPath).lexically_normal();
  std::error_code error;
  if (!std::filesystem::exists(folder / "config.json", error)) return;
  model.set_path(folder.string());
  if (model.served_name().empty()) model.set_served_name(kDemoModelName);
  line.serves_demo = true;
}

}  // namespace mneme
