mneme_test(tests/models/sentencepiece_model_file_test.cc PROGRAM tokenizer_tests DEPS mneme::tokenizer)
mneme_test(tests/models/streaming_decoder_test.cc PROGRAM tokenizer_tests DEPS mneme::tokenizer mneme_deps::json)
mneme_test(tests/models/tokenizer_loader_test.cc PROGRAM tokenizer_tests DEPS mneme::tokenizer mneme_deps::json)
mneme_test(tests/models/tokenizer_test.cc PROGRAM tokenizer_tests DEPS mneme::tokenizer mneme_deps::json)
# Sanitizers rule out RTLD_DEEPBIND, without which the two protobufs meet.
if(NOT MNEME_SANITIZE)
  mneme_test(tests/models/tokenizer_beside_protobuf_test.cc ALONE
    DEPS mneme::tokenizer mneme_deps::json mneme_deps::protobuf)
endif()
