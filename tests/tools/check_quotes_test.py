"""tools/check_quotes.py finds quotes that are no longer true, and no others."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECKER = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_quotes.py"
SOURCE = "int a;\n\nstruct B {\n  int c = 1;\n  int d = 2;\n};\n"


def check(document):
    """Exit status and output for a document beside the file a.cc."""
    with tempfile.TemporaryDirectory() as root:
        (pathlib.Path(root) / "CONTRIBUTING.md").write_text(document)
        (pathlib.Path(root) / "a.cc").write_text(SOURCE)
        result = subprocess.run([sys.executable, CHECKER, root], capture_output=True, text=True)
        return result.returncode, result.stdout + result.stderr


class CheckQuotesTest(unittest.TestCase):
    def assert_refused(self, document, reason):
        status, output = check(document)
        self.assertEqual(status, 1, output)
        self.assertIn(reason, output)

    def assert_accepted(self, document):
        status, output = check(document)
        self.assertEqual(status, 0, output)

    def test_paragraphs_are_in_the_file_they_name(self):
        self.assert_accepted("```cpp a.cc\nint a;\n```\n")
        self.assert_accepted("```cpp a.cc\nint c = 1;\nint d = 2;\n\nint a;\n```\n")
        self.assert_refused("```cpp a.cc\nint b;\n```\n", "a.cc has no such lines")
        self.assert_refused("```cpp a.cc\nint c = 1;\nint d = 3;\n```\n", "int d = 3;")
        self.assert_refused("```cpp a.cc\nint d = 2;\nint c = 1;\n```\n", "a.cc has no such lines")
        self.assert_refused("```cpp a.cc\n  int c = 1;\nint d = 2;\n```\n", "a.cc has no such lines")
        self.assert_refused("```cpp b.cc\nint a;\n```\n", "there is no b.cc")

    def test_added_lines_are_there_in_their_order(self):
        self.assert_accepted("```diff\n+++ a.cc\n+int a;\n+  int d = 2;\n```\n")
        self.assert_refused("```diff\n+++ a.cc\n+  int d = 2;\n+int a;\n```\n", "a.cc has no such line")
        self.assert_refused("```diff\n+++ a.cc\n+int d = 2;\n```\n", "a.cc has no such line")
        self.assert_refused("```diff\n+++ b.cc\n+int a;\n```\n", "there is no b.cc")

    def test_other_blocks_are_no_quotes(self):
        self.assert_accepted("```cpp\nint b;\n```\n```text\n+++ a.cc\n+int b;\n```\nint b;\n")


if __name__ == "__main__":
    unittest.main()
