// C interface of the shared library that holds SentencePiece, so that its bundled protocol buffers
// and its own absl::string_view never meet ours. Only plain data crosses; the library allocates and
// frees its own memory; no exception leaves it. Loaded by tokenizers/sentencepiece/library.cc.
//
// Thread-safe: one model may be used by any number of threads.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MNEME_SENTENCEPIECE_ABI 1

typedef struct mneme_sentencepiece_model mneme_sentencepiece_model;

typedef struct mneme_sentencepiece_ids {
  int32_t* ids;  // owned by the library, freed with free_ids()
  size_t size;
} mneme_sentencepiece_ids;

// Functions that can fail return 0, or NULL, and put a NUL-terminated message into
// error[error_size].
typedef struct mneme_sentencepiece_api {
  int abi;  // MNEME_SENTENCEPIECE_ABI

  // A model from the bytes of its file.
  mneme_sentencepiece_model* (*load)(const char* bytes, size_t size, char* error,
                                     size_t error_size);
  void (*free_model)(mneme_sentencepiece_model* model);

  int (*piece_count)(const mneme_sentencepiece_model* model);
  // Spelling of a piece, 0 <= id < piece_count; valid as long as the model.
  const char* (*piece)(const mneme_sentencepiece_model* model, int id, size_t* size);
  // -1: the model has none.
  int (*bos_id)(const mneme_sentencepiece_model* model);
  int (*eos_id)(const mneme_sentencepiece_model* model);

  int (*encode)(const mneme_sentencepiece_model* model, const char* text, size_t size,
                mneme_sentencepiece_ids* ids, char* error, size_t error_size);
  void (*free_ids)(mneme_sentencepiece_ids* ids);
  // 1: the text, normalised, starts with a space; 0: with something else; -1: nothing is left of
  // it; -2: error.
  int (*starts_with_space)(const mneme_sentencepiece_model* model, const char* text, size_t size,
                           char* error, size_t error_size);
} mneme_sentencepiece_api;

// The only symbol that the library exports: const mneme_sentencepiece_api* (*)(void).
#define MNEME_SENTENCEPIECE_ENTRY "mneme_sentencepiece_get_api"

#ifdef __cplusplus
}  // extern "C"
#endif
