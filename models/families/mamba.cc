#include "models/mixers/mamba.h"

#include "models/families/families.h"
#include "models/families/mamba_keys.h"

namespace mneme {

namespace {

NetworkMaker ReadMamba(absl::string_view model_type, ConfigReader& reader, ModelConfig& config) {
  const bool falcon = model_type == "falcon_mamba";  // which is transformers' alone
  const bool fla = !falcon && ReadMambaFormat(reader) == MambaFormat::kFla;
  const MambaStackDefaults transformers_defaults = {
      .vocab = 50280, .model_dim = 768, .layers = 32, .tokens = {.bos = 0, .eos = 0, .tied = true}};
  const MambaStackDefaults fla_defaults = {
      .vocab = 32000, .model_dim = 2048, .layers = 48, .norm_eps_key = "norm_eps"};
  StackKeys stack = ReadMambaStack(reader, fla ? fla_defaults : transformers_defaults, config);
  stack.obeys_tied = !fla;
  MambaConfig mixer =
      ReadMambaMixer(reader, config, stack.model_dim,
                     fla ? ReadRenamedKey(reader, "dt_rank", "time_step_rank") : "time_step_rank");
  if (fla) {
    reader.Disregard({"time_step_rank"});
    reader.Keep("dt_rank", mixer.rank);  // under whichever name it came
  }
  RefuseUnlessNull(reader, "attn", "null: this model_type has no layers of attention");
  mixer.conv_bias = ReadSwitch(reader, config, "use_conv_bias", true, ".conv1d.bias");
  if (falcon) {
    mixer.inner_norm_eps =
        static_cast<float>(reader.Number("mixer_rms_eps", 1e-6, kLeastNumber, 1));
  }
  return MambaNetwork(
      stack, {.mixer_norm = {"norm.weight"},
              .mixer = [mixer](const LayerBuilder& builder) { return MakeMamba(builder, mixer); },
              .feed_forward = nullptr});
}

}  // namespace

const Architecture kMamba = {.model_type = "mamba", .read = ReadMamba, .ways = R"([{},
                {"state_size": 20, "conv_kernel": 3, "use_bias": true, "use_conv_bias": false}])"};

const Architecture kFalconMamba = {.model_type = "falcon_mamba", .read = ReadMamba, .ways = "[{}]"};

}  // namespace mneme
