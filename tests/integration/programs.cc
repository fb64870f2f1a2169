#include "tests/integration/programs.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace mneme {

std::vector<std::string> With(std::vector<std::string> command,
                              const std::vector<std::string>& words) {
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

std::vector<std::string> ServerFlags(const std::vector<std::string>& flags) {
  return With(
      {"--model", kModel, "--grpc-port=0", "--http-port=0", "--threads=2", "--state-memory=16MiB"},
      flags);
}

Server::Server(const std::vector<std::string>& flags)
    : ChildProcess(With({kServer}, ServerFlags(flags))) {
  EXPECT_TRUE(WaitForText("listening on ", &address));
  EXPECT_TRUE(WaitForText("ready"));
}

Result RunProgram(const std::vector<std::string>& command, const std::string& input,
                  const std::vector<std::string>& environment) {
  ChildProcess process(command, input, environment);
  const int code = process.Wait();
  return {code, process.out(), process.err()};
}

Result RunServer(const std::vector<std::string>& flags) {
  return RunProgram(With({kServer}, flags));
}

Result RunClient(const Server& server, const std::vector<std::string>& words,
                 const std::string& input) {
  return RunProgram(With({kClient}, words), input, {"MNEME_SERVER=" + server.address});
}

TemporaryFolder::TemporaryFolder() : path_(testing::TempDir() + "mneme_process_XXXXXX") {
  EXPECT_NE(mkdtemp(path_.data()), nullptr);
}

TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

std::string TemporaryFolder::Write(const std::string& name, const std::string& text) const {
  const std::string path = path_ + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

}  // namespace mneme
