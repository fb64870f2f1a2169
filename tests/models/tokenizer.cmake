mneme_test(tests/models/sentencepiece_model_file_test.cc PROGRAM tokenizer_tests DEPS mneme::tokenizer)
mneme_test(tests/models/streaming_decoder_test.cc PROGRAM tokenizer_tests DEPS mneme::tokenizer mneme_deps::json)
mneme_test(tests/models/tokenizer_loader_test.cc PROGRAM tokenizer_tests DEPS mneme::tokenizer mneme_deps::json)
mneme_test(tests/models/tokenizer_test.cc PROGRAM tokenizer_tests DEPS mneme::tokenizer mneme_deps::json)
# proto_config for how its users have to be compiled beside the sanitizers.
mneme_test(tests/models/tokenizer_beside_protobuf_test.cc ALONE
  DEPS mneme::tokenizer mneme_deps::json mneme::proto_config)
