"""Each rule of tools/check_layering.py catches what it is there for, and nothing else."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECKER = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_layering.py"


def check(path, text):
    """Exit status and output for a tree that holds this one file."""
    with tempfile.TemporaryDirectory() as root:
        file = pathlib.Path(root) / path
        file.parent.mkdir(parents=True)
        file.write_text(text)
        result = subprocess.run([sys.executable, CHECKER, root], capture_output=True, text=True)
        return result.returncode, result.stdout + result.stderr


class CheckLayeringTest(unittest.TestCase):
    def assert_refused(self, path, text, reason):
        status, output = check(path, text)
        self.assertEqual(status, 1, output)
        self.assertIn(reason, output)
        self.assertIn(path + ":", output)

    def assert_accepted(self, path, text):
        status, output = check(path, text)
        self.assertEqual(status, 0, output)

    def test_includes_point_downward(self):
        self.assert_refused("kernels/a.cc", '#include "models/model.h"\n', "kernels/ may not")
        self.assert_refused("base/a.cc", '#include "kernels/tensor.h"\n', "base/ may not")
        self.assert_refused("clients/cpp/a.cc", '#include "engine/engine.h"\n', "clients/ may not")
        self.assert_refused("server/a.cc", '#include "models/model.h"\n', "server/ may not")
        self.assert_refused("store/a.cc", '#include "engine/engine.h"\n', "store/ may not")
        self.assert_refused("engine/a.cc", '#include "mneme/v1/x.pb.h"\n', "engine/ may not")
        self.assert_accepted("engine/a.cc", '#include "models/model.h"\n#include "base/log.h"\n')
        self.assert_accepted("server/a.cc", '#include "mneme/v1/x.grpc.pb.h"\n')
        self.assert_accepted("tests/a.cc", '#include "server/config/config.h"\n')

    def test_third_party_headers_stay_in_their_layer(self):
        self.assert_refused("engine/a.cc", "#include <grpcpp/grpcpp.h>\n", "engine/ may not")
        self.assert_refused("server/a.cc", "#include <gtest/gtest.h>\n", "server/ may not")
        self.assert_refused("engine/a.cc", "#include <prometheus/registry.h>\n", "engine/ may not")
        self.assert_refused("engine/a.cc", "#include <cuda_runtime.h>\n", "engine/ may not")
        self.assert_refused("engine/a.cc", "#include <sqlite3.h>\n", "engine/ may not")
        self.assert_accepted("models/a.cc", "#include <nlohmann/json.hpp>\n")

    def test_the_reference_backend_is_not_shipped(self):
        text = '#include "kernels/reference/reference_backend.h"\n'
        self.assert_refused("kernels/backend.cc", text, "tests and tools only")
        self.assert_accepted("tools/a.cc", text)
        self.assert_accepted("kernels/reference/dense.cc", text)

    def test_cuda_files_see_plain_headers_only(self):
        self.assert_refused("kernels/cuda/a.cu", '#include "absl/status/status.h"\n', "Abseil")
        self.assert_refused("kernels/cuda/a.cu", '#include "kernels/backend.h"\n', "Abseil")
        self.assert_refused("kernels/cuda/a.cu", '#include "base/clock.h"\n', "base/log.h")
        self.assert_accepted(
            "kernels/cuda/a.cu", '#include <cuda_runtime.h>\n#include "kernels/tensor_view.h"\n'
        )

    def test_mneme_cuda_occurs_in_two_files(self):
        self.assert_refused("kernels/cpu/a.cc", "#ifdef MNEME_CUDA\n#endif\n", "MNEME_CUDA")
        self.assert_accepted("kernels/backend.cc", "#ifdef MNEME_CUDA\n#endif\n")

    def test_comments_are_not_code(self):
        self.assert_accepted("base/a.cc", '/*\n#include "engine/engine.h"\n*/\n// MNEME_CUDA\n')

    def test_the_line_is_named(self):
        status, output = check("base/a.cc", '/* one\ntwo */\n\n#include "engine/engine.h"\n')
        self.assertEqual(status, 1)
        self.assertIn("base/a.cc:4:", output)

    def test_headers_are_included_once(self):
        self.assert_refused("base/a.h", "int a;\n", "#pragma once")

    def test_an_empty_tree_is_an_error(self):
        with tempfile.TemporaryDirectory() as root:
            result = subprocess.run([sys.executable, CHECKER, root], capture_output=True)
            self.assertNotEqual(result.returncode, 0)


if __name__ == "__main__":
    unittest.main()
