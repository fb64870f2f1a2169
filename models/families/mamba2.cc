#include "models/mixers/mamba2.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/families/families.h"
#include "models/families/mamba_keys.h"

namespace mneme {
namespace {

using nlohmann::json;

// Heads whose channels are those that expand makes; of fla's files their number follows.
void ReadMamba2Heads(ConfigReader& reader, int model_dim, bool fla, Mamba2Config& mixer) {
  const int channels = ReadExpandedWidth(reader, model_dim);
  mixer.head_dim = reader.Int("head_dim", 64, 1, kMaxHeadDim);
  const int follows = channels / mixer.head_dim;
  mixer.heads = reader.Int("num_heads", fla ? follows : 128, 1, kMaxHeads);
  if (int64_t{mixer.heads} * mixer.head_dim != channels) {
    reader.Invalid("num_heads", mixer.heads,
                   absl::StrCat("a number that times head_dim (", mixer.head_dim,
                                ") is expand times hidden_size (", channels, ")"));
    mixer.heads = mixer.head_dim = 1;
  }
  mixer.groups = reader.Int("n_groups", fla ? 1 : 8, 1, kMaxHeads);
  if (mixer.heads % mixer.groups != 0) {
    reader.Invalid("n_groups", mixer.groups,
                   absl::StrCat("a divisor of num_heads (", mixer.heads, ")"));
    mixer.groups = 1;
  }
}

// Whether the library that wrote the file norms each group by itself, as mamba_ssm does.
// transformers has since 5.23, and flash-linear-attention since it renamed keys; all channels were
// one group to the norm before.
bool NormsEachGroup(const ConfigReader& reader, bool fla) {
  if (fla) {
    return reader.Has("rmsnorm") || !(reader.Has("time_step_limit") ||
                                      reader.Has("time_step_rank") || reader.Has("rms_norm"));
  }
  const json* version = reader.Find("transformers_version");
  if (version == nullptr || !version->is_string()) return false;
  int major = 0, minor = 0;
  const int read = std::sscanf(version->get<std::string>().c_str(), "%d.%d", &major, &minor);
  return read == 2 && std::pair(major, minor) >= std::pair(5, 23);
}

// Parts of the channels that the gated norm norms each by itself. Networks that mamba_ssm trained
// come in the format of an older transformers, too, so a key of Mneme's own overrides it.
int ReadNormGroups(ConfigReader& reader, bool fla, const Mamba2Config& mixer) {
  const int formats = fla ? mixer.groups : 1;
  const int writers = NormsEachGroup(reader, fla) ? mixer.groups : 1;
  const int groups = reader.Int("norm_groups", writers, 1, kMaxChannels);
  if (mixer.channels() % groups != 0) {
    reader.Invalid("norm_groups", groups,
                   absl::StrCat("a divisor of expand times hidden_size (", mixer.channels(), ")"));
    return 1;
  }
  if (groups == formats) reader.Disregard({"norm_groups"});
  return groups;
}

// transformers reads none of these keys of flash-linear-attention's, and its network is as if they
// had these values. norm_before_gate is not among them: its own files have that.
void WarnOfKeysOfFla(ConfigReader& reader, ModelConfig& config) {
  const json limit = reader.IsNull("time_step_limit") ? json::array({0.0, "Infinity"})
                                                      : *reader.Find("time_step_limit");
  const std::pair<const char*, json> network[] = {
      {"dt_limit", limit}, {"D_has_hdim", false}, {"rmsnorm", true}};
  for (const auto& [key, value] : network) {
    if (!reader.Has(key) || *reader.Find(key) == value) continue;
    WarnOfUnused(reader, config, {key},
                 "it is flash-linear-attention's, and the file has transformers' format");
  }
}

NetworkMaker ReadMamba2(absl::string_view, ConfigReader& reader, ModelConfig& config) {
  const bool fla = ReadMambaFormat(reader) == MambaFormat::kFla;
  const MambaStackDefaults transformers_defaults = {
      .vocab = 32768, .model_dim = 4096, .layers = 64, .tokens = {.bos = 0, .eos = 2}};
  const MambaStackDefaults fla_defaults = {
      .vocab = 32000, .model_dim = 2048, .layers = 48, .norm_eps_key = "norm_eps"};
  StackKeys stack = ReadMambaStack(reader, fla ? fla_defaults : transformers_defaults, config);
  stack.obeys_tied = !fla;
  Mamba2Config mixer;
  ReadMamba2Heads(reader, stack.model_dim, fla, mixer);
  mixer.states = reader.Int("state_size", 128, 1, kMaxHeadDim);
  CheckChannels(reader, int64_t{mixer.groups} * mixer.states, "state_size");
  mixer.conv_width = reader.Int("conv_kernel", 4, 1, kMaxConvWidth);
  mixer.conv_bias = ReadSwitch(reader, config, "use_conv_bias", true, ".conv1d.bias");
  mixer.bias = ReadSwitch(reader, config, "use_bias", false, ".in_proj.bias");
  std::tie(mixer.least_step, mixer.most_step) = ReadStepLimit(
      reader, fla ? ReadRenamedKey(reader, "dt_limit", "time_step_limit") : "time_step_limit",
      fla ? "dt_limit" : "time_step_limit");
  mixer.norm_groups = ReadNormGroups(reader, fla, mixer);
  if (fla) {
    mixer.skip_by_channel = reader.Bool("D_has_hdim", false);
    const bool norm_first = reader.Bool("norm_before_gate", false);
    if (!ReadSwitch(reader, config, "rmsnorm", true, ".mixer.norm.")) {
      mixer.output = Mamba2Config::Output::kGate;
      reader.Keep("norm_before_gate", false);  // there is none
      reader.Disregard({"norm_groups"});
    } else if (norm_first) {
      mixer.output = Mamba2Config::Output::kNormThenGate;
    }
  }
  if (!fla) WarnOfKeysOfFla(reader, config);
  reader.Disregard({"time_step_rank"});  // stored by both, read by neither
  RefuseUnlessNull(reader, "attn", "null: this model_type has no layers of attention");
  return MambaNetwork(
      stack, {.mixer_norm = {"norm.weight"},
              .mixer = [mixer](const LayerBuilder& builder) { return MakeMamba2(builder, mixer); },
              .feed_forward = nullptr});
}

}  // namespace

const Architecture kMamba2 = {
    .model_type = "mamba2", .read = ReadMamba2, .coarsest_state = DType::kF16, .ways = R"([{},
                {"n_groups": 4, "conv_kernel": 2, "use_bias": true, "head_dim": 16,
                 "num_heads": 8, "time_step_limit": [0.02, 0.05]}])"};

}  // namespace mneme
