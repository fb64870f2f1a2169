// The only translation unit that includes SentencePiece; see sentencepiece_shim.h.
#include "tokenizers/sentencepiece/shim.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace sentencepiece::logging {
void SetMinLogLevel(int level);  // exported, but declared in no installed header
}

struct mneme_sentencepiece_model {
  sentencepiece::SentencePieceProcessor processor;
};

namespace {

constexpr int kLogFatal = 3;  // its messages come back in statuses; standard error is not theirs

void SetError(const char* message, char* error, size_t error_size) {
  if (error_size > 0) {
    const size_t size = std::min(std::strlen(message), error_size - 1);
    std::memcpy(error, message, size);
    error[size] = '\0';
  }
}

// Runs `body`, which returns its result; what it throws becomes `failure` and a message.
template <typename Result, typename Body>
Result Guard(Result failure, char* error, size_t error_size, const Body& body) {
  try {
    return body();
  } catch (const std::exception& exception) {
    SetError(exception.what(), error, error_size);
  } catch (...) {
    SetError("unknown exception", error, error_size);
  }
  return failure;
}

mneme_sentencepiece_model* Load(const char* bytes, size_t size, char* error, size_t error_size) {
  using Model = mneme_sentencepiece_model;
  return Guard<Model*>(nullptr, error, error_size, [&]() -> Model* {
    sentencepiece::logging::SetMinLogLevel(kLogFatal);
    auto model = std::make_unique<Model>();
    const auto status = model->processor.LoadFromSerializedProto({bytes, size});
    if (!status.ok()) {
      SetError(status.ToString().c_str(), error, error_size);
      return nullptr;
    }
    return model.release();
  });
}

void FreeModel(mneme_sentencepiece_model* model) { delete model; }

int PieceCount(const mneme_sentencepiece_model* model) { return model->processor.GetPieceSize(); }

const char* Piece(const mneme_sentencepiece_model* model, int id, size_t* size) {
  const std::string& piece = model->processor.IdToPiece(id);
  *size = piece.size();
  return piece.data();
}

int BosId(const mneme_sentencepiece_model* model) { return model->processor.bos_id(); }
int EosId(const mneme_sentencepiece_model* model) { return model->processor.eos_id(); }

int Encode(const mneme_sentencepiece_model* model, const char* text, size_t size,
           mneme_sentencepiece_ids* ids, char* error, size_t error_size) {
  *ids = {};
  return Guard(0, error, error_size, [&] {
    std::vector<int> found;
    const auto status = model->processor.Encode({text, size}, &found);
    if (!status.ok()) {
      SetError(status.ToString().c_str(), error, error_size);
      return 0;
    }
    ids->ids = static_cast<int32_t*>(std::malloc(std::max<size_t>(1, found.size()) * 4));
    if (ids->ids == nullptr) {
      throw std::bad_alloc();
    }
    ids->size = found.size();
    std::copy(found.begin(), found.end(), ids->ids);
    return 1;
  });
}

void FreeIds(mneme_sentencepiece_ids* ids) {
  std::free(ids->ids);
  *ids = {};
}

int StartsWithSpace(const mneme_sentencepiece_model* model, const char* text, size_t size,
                    char* error, size_t error_size) {
  return Guard(-2, error, error_size, [&] {
    std::vector<std::string> pieces;  // of unknown text, the normalised text itself
    const auto status = model->processor.Encode({text, size}, &pieces);
    if (!status.ok()) {
      SetError(status.ToString().c_str(), error, error_size);
      return -2;
    }
    if (pieces.empty()) {
      return -1;
    }
    // U+2581 stands for a space unless the model says that spaces stay as they are.
    return pieces[0].compare(0, 3, "\xE2\x96\x81") == 0 || pieces[0][0] == ' ' ? 1 : 0;
  });
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const mneme_sentencepiece_api*
mneme_sentencepiece_get_api() {
  static const mneme_sentencepiece_api api = {
      MNEME_SENTENCEPIECE_ABI, Load, FreeModel, PieceCount, Piece, BosId, EosId, Encode, FreeIds,
      StartsWithSpace,
  };
  return &api;
}
