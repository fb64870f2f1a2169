// BERT and RoBERTa for classification, as transformers has them, and with Memoria, as the authors'
// experiments save them.
#pragma once

#include "absl/strings/string_view.h"
#include "base/config_reader.h"
#include "models/model_config.h"
#include "models/network.h"

namespace mneme {

// As Architecture::read, of "bert", "roberta", "memoria_bert" and "memoria_roberta".
NetworkMaker ReadBert(absl::string_view model_type, ConfigReader& reader, ModelConfig& config);

}  // namespace mneme
