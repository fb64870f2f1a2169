#!/usr/bin/env bash
# Compares the tokenizers with the packages that folders of Hugging Face and SentencePiece are made for, over
# all of Unicode and folders of all sorts. Installs the packages and takes many minutes, so no test runs it;
# tests/golden/tokenizer_mix holds a small part of what it compares.
#
# usage: tools/check_tokenizers.sh [ARGUMENT...]    of tests/tokenizers/compare_with_packages.py
#
#   BIN_DIR       folder of tokenize_lines (build/default/bin)
#   ENVIRONMENT   where the packages are installed, and kept (build/tokenizer_packages)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bin=${BIN_DIR:-build/default/bin}
environment=${ENVIRONMENT:-build/tokenizer_packages}
packages=(tokenizers==0.23.3 transformers==5.23.0 sentencepiece==0.2.3 protobuf==7.36.2)

if [[ ! -x $environment/bin/python ]] || [[ "${packages[*]}" != "$(cat "$environment/.installed" 2>/dev/null)" ]]; then
  rm -rf "$environment"
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"
  echo "${packages[*]}" >"$environment/.installed"
fi
exec "$environment/bin/python" tests/tokenizers/compare_with_packages.py "$@" "$bin/tokenize_lines"
