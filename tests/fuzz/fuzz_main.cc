// Drives LLVMFuzzerTestOneInput without libFuzzer, so that fuzz targets build with any compiler and
// run in CTest. With Clang's -fsanitize=fuzzer leave this file out; the targets are the same.
//
//   foo_fuzz [--seconds=60] [--seed=1] [--seeds=PATH ...] [--max_bytes=4096] [FILE ...]
//
// FILE ...: runs each once, as libFuzzer does to reproduce a finding, and exits.
// Otherwise: random inputs for that many seconds. Half are made up, half are seeds (files, or all
// files of folders) with bytes changed, cut, repeated and spliced. Every input depends on the seed
// and its number only; there is no coverage feedback. The input that crashes is left in
// <program>.crash.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// Targets may have one, as with libFuzzer: it runs once, first of all.
extern "C" __attribute__((weak)) int LLVMFuzzerInitialize(int* argc, char*** argv);
// Present in sanitizer builds only.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

using Bytes = std::string;

struct Flags {
  double seconds = 60;
  uint64_t seed = 1;
  size_t max_bytes = 4096;
  std::vector<std::string> files;
  std::vector<Bytes> seeds;
};

Bytes ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    std::exit(2);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

void AddSeeds(const std::string& path, std::vector<Bytes>& seeds) {
  if (!std::filesystem::is_directory(path)) {
    seeds.push_back(ReadFile(path));
    return;
  }
  std::vector<Bytes> found;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.is_regular_file()) {
      found.push_back(ReadFile(entry.path().string()));
    }
  }
  // The order of a folder's entries is not the same everywhere.
  std::sort(found.begin(), found.end());
  seeds.insert(seeds.end(), found.begin(), found.end());
}

Flags ParseFlags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const auto value = [&](const char* name) -> const char* {
      return arg.rfind(name, 0) == 0 ? arg.c_str() + std::strlen(name) : nullptr;
    };
    if (const char* seconds = value("--seconds=")) {
      flags.seconds = std::atof(seconds);
    } else if (const char* seed = value("--seed=")) {
      flags.seed = std::strtoull(seed, nullptr, 10);
    } else if (const char* max_bytes = value("--max_bytes=")) {
      flags.max_bytes = std::strtoull(max_bytes, nullptr, 10);
    } else if (const char* path = value("--seeds=")) {
      AddSeeds(path, flags.seeds);
    } else if (arg.rfind("--", 0) == 0) {
      std::fprintf(stderr, "unknown flag %s\n", arg.c_str());
      std::exit(2);
    } else {
      flags.files.push_back(arg);
    }
  }
  return flags;
}

class InputMaker {
 public:
  InputMaker(const Flags& flags, uint64_t number)
      : flags_(flags), random_(flags.seed * 0x9E3779B97F4A7C15u + number) {}

  Bytes Make() {
    if (flags_.seeds.empty() || Below(2) == 0) {
      return MakeUp();
    }
    Bytes input = flags_.seeds[Below(flags_.seeds.size())];
    // Formats with lengths in them fall apart when bytes come or go, so half of the inputs keep
    // theirs.
    const int kinds = Below(2) == 0 ? kInPlaceEdits : kAllEdits;
    for (size_t edits = 1 + Below(4); edits > 0; --edits) {
      Edit(input, kinds);
    }
    return input;
  }

 private:
  size_t Below(size_t bound) { return bound == 0 ? 0 : random_() % bound; }
  char Byte() {
    // Extremes and printable characters get further than noise.
    switch (Below(4)) {
      case 0:
        return static_cast<char>(0x20 + Below(0x5F));
      case 1:
        return "\x00\x01\x7F\x80\xFE\xFF"[Below(6)];
      default:
        return static_cast<char>(random_());
    }
  }

  Bytes MakeUp() {
    Bytes input(Below(Below(8) == 0 ? flags_.max_bytes : 64), '\0');
    for (char& c : input) {
      c = Byte();
    }
    return input;
  }

  static constexpr int kInPlaceEdits = 3, kAllEdits = 7;

  // One of the first `kinds` kinds of edits.
  void Edit(Bytes& input, int kinds) {
    const size_t at = Below(input.size() + 1);
    const size_t length = std::min(input.size() - at, Below(Below(2) == 0 ? 8 : 256));
    switch (Below(kinds)) {
      case 0:
      case 1:
        for (size_t i = at; i < std::min(input.size(), at + 1 + Below(4)); ++i) {
          input[i] = Byte();
        }
        break;
      case 2:
        if (at < input.size()) {
          input[at] = static_cast<char>(input[at] ^ (1 << Below(8)));
        }
        break;
      case 3:
        input.erase(at, length);
        break;
      case 4:
        input.insert(at, input.substr(Below(input.size() + 1), length));
        break;
      case 5:
        input.insert(at, MakeUp().substr(0, 1 + Below(16)));
        break;
      default: {
        if (Below(8) == 0) {
          input.resize(at);
        } else {
          const Bytes& other = flags_.seeds[Below(flags_.seeds.size())];
          const size_t from = Below(other.size() + 1);
          input.replace(at, length, other.substr(from, Below(64)));
        }
      }
    }
  }

  const Flags& flags_;
  std::mt19937_64 random_;
};

// A crash saves this input in this file. Globals, because signal handlers have no arguments of
// ours.
const Bytes* input_under_way = nullptr;
std::string crash_path;

void SaveInput() {
  const int file = open(crash_path.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0644);
  if (input_under_way != nullptr && file >= 0 &&
      write(file, input_under_way->data(), input_under_way->size()) >= 0) {
    const char message[] = "the input is in <program>.crash\n";
    if (write(STDERR_FILENO, message, sizeof(message) - 1) < 0) {
      return;
    }
  }
}

void OnSignal(int signal) {
  SaveInput();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void Run(const Bytes& input) {
  // A copy of exactly this size, so that AddressSanitizer sees a read behind its end.
  const std::unique_ptr<uint8_t[]> copy(new uint8_t[input.size()]);
  std::copy(input.begin(), input.end(), copy.get());
  input_under_way = &input;
  LLVMFuzzerTestOneInput(copy.get(), input.size());
  input_under_way = nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  if (LLVMFuzzerInitialize != nullptr) (void)LLVMFuzzerInitialize(&argc, &argv);
  const Flags flags = ParseFlags(argc, argv);
  if (!flags.files.empty()) {
    for (const std::string& path : flags.files) {
      Run(ReadFile(path));
    }
    return 0;
  }
  crash_path = std::string(argv[0]) + ".crash";
  // A target's own ways to fail: abort(), or a time limit.
  std::vector<int> signals = {SIGABRT, SIGALRM};
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(SaveInput);  // sanitizers exit without a signal
  } else {
    signals.insert(signals.end(), {SIGSEGV, SIGBUS, SIGFPE, SIGILL});
  }
  for (const int signal : signals) std::signal(signal, OnSignal);
  const auto start = std::chrono::steady_clock::now();
  double seconds = 0;
  uint64_t number = 0;
  while (seconds < flags.seconds) {
    const Bytes input = InputMaker(flags, number).Make();
    Run(input);
    ++number;
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  std::printf("%llu inputs in %.1f s, seed %llu\n", static_cast<unsigned long long>(number),
              seconds, static_cast<unsigned long long>(flags.seed));
  return 0;
}
