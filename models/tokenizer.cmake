# mneme::tokenizer, a library of its own that mneme::models links, and the shared library that holds
# SentencePiece: its bundled protobuf must not meet the server's.
mneme_library(tokenizer
  SOURCES models/byte_tokenizer.cc models/json_text.cc models/sentencepiece_charsmap.cc
          models/sentencepiece_library.cc models/sentencepiece_model_file.cc
          models/sentencepiece_tokenizer.cc models/special_tokens.cc models/streaming_decoder.cc models/tokenizer.cc
          models/tokenizer_config.cc models/tokenizer_loader.cc
  DEPS    mneme::base absl::flat_hash_map absl::flat_hash_set absl::status absl::statusor absl::strings
          absl::str_format mneme_deps::json ${CMAKE_DL_LIBS})

if(TARGET mneme_deps::sentencepiece)
  add_library(mneme_sentencepiece SHARED ${PROJECT_SOURCE_DIR}/models/sentencepiece_shim.cc)
  target_include_directories(mneme_sentencepiece PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(mneme_sentencepiece PRIVATE -Wall -Wextra
                         $<$<BOOL:${MNEME_WERROR}>:-Werror>)
  target_link_libraries(mneme_sentencepiece PRIVATE mneme_deps::sentencepiece)
  set_target_properties(mneme_sentencepiece PROPERTIES
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  install(TARGETS mneme_sentencepiece LIBRARY DESTINATION lib COMPONENT serving)
  # Loaded at run time, so nothing links it; but who builds a program that loads it needs it built.
  add_dependencies(mneme_tokenizer mneme_sentencepiece)
  target_compile_definitions(mneme_tokenizer PRIVATE
    "MNEME_SENTENCEPIECE_LIBRARY=\"$<TARGET_FILE:mneme_sentencepiece>\"")
endif()
