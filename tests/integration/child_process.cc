#include "tests/integration/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"

extern char** environ;

namespace mneme {

ChildProcess::ChildProcess(const std::vector<std::string>& command, const std::string& input,
                           const std::vector<std::string>& environment) {
  int in[2], out[2], err[2];
  CHECK_EQ(pipe2(in, O_CLOEXEC), 0);
  CHECK_EQ(pipe2(out, O_CLOEXEC), 0);
  CHECK_EQ(pipe2(err, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  std::vector<char*> arguments, variables;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  for (const std::string& word : environment) variables.push_back(const_cast<char*>(word.c_str()));
  variables.push_back(nullptr);
  CHECK_EQ(
      posix_spawn(&pid_, command[0].c_str(), &actions, nullptr, arguments.data(), variables.data()),
      0)
      << command[0];
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  close(err[1]);
  readers_.emplace_back([this, fd = out[0]] { Collect(fd, &out_); });
  readers_.emplace_back([this, fd = err[0]] { Collect(fd, &err_); });
  CHECK_EQ(write(in[1], input.data(), input.size()), static_cast<ssize_t>(input.size()));
  close(in[1]);
}

ChildProcess::~ChildProcess() {
  if (exit_code_ < 0) {
    kill(pid_, SIGKILL);
    Wait();
  }
}

void ChildProcess::Collect(int fd, std::string* text) {
  char buffer[4096];
  ssize_t count;
  while ((count = read(fd, buffer, sizeof(buffer))) > 0) {
    absl::MutexLock lock(&mu_);
    text->append(buffer, static_cast<size_t>(count));
  }
  close(fd);
  absl::MutexLock lock(&mu_);
  open_ -= 1;
}

bool ChildProcess::WaitForText(const std::string& text, std::string* rest) {
  absl::MutexLock lock(&mu_);
  const std::string* where = nullptr;
  size_t begin = 0;
  const auto settled = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    for (const std::string* output : {&out_, &err_}) {
      begin = output->find(text);
      if (begin == std::string::npos || output->find('\n', begin) == std::string::npos) continue;
      where = output;
      return true;
    }
    return open_ == 0;
  };
  mu_.Await(absl::Condition(&settled));
  if (where == nullptr) return false;
  begin += text.size();
  if (rest != nullptr) *rest = where->substr(begin, where->find('\n', begin) - begin);
  return true;
}

void ChildProcess::Signal(int signal) { kill(pid_, signal); }

int ChildProcess::Wait() {
  if (exit_code_ >= 0) return exit_code_;
  for (std::thread& reader : readers_) reader.join();
  int status = 0;
  CHECK_EQ(waitpid(pid_, &status, 0), pid_);
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  return exit_code_;
}

std::string ChildProcess::out() const {
  absl::MutexLock lock(&mu_);
  return out_;
}

std::string ChildProcess::err() const {
  absl::MutexLock lock(&mu_);
  return err_;
}

}  // namespace mneme
