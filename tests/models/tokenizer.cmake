mneme_test(tests/models/sentencepiece_model_file_test.cc DEPS mneme::tokenizer)
mneme_test(tests/models/streaming_decoder_test.cc DEPS mneme::tokenizer mneme_deps::json)
mneme_test(tests/models/tokenizer_loader_test.cc DEPS mneme::tokenizer mneme_deps::json)
mneme_test(tests/models/tokenizer_test.cc DEPS mneme::tokenizer mneme_deps::json)
