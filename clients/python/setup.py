"""Describes the messages of package mneme.v1 from the server's proto files while building.

What is made is data, not code: the messages' descriptors, of which mneme/v1/descriptors.py makes
classes when it is imported, and their types for type checkers. Generated code would tie the package
to the releases of grpcio and protobuf it was made with. Neither is kept in the repository, so
they cannot get stale. The proto files are those of the repository (../../proto) or, in a source
distribution, a copy beside this file.
"""

import atexit
import shutil
import sys
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
PROTOS = ["mneme/v1/inference.proto", "mneme/v1/memory.proto", "mneme/v1/sessions.proto"]
# Files of other packages that the client needs; it has no types for them.
OTHER_PROTOS = [
    "google/rpc/error_details.proto",
    "google/rpc/status.proto",
    "grpc/health/v1/health.proto",
]


def proto_root() -> Path:
    for root in (HERE / "proto", HERE.parent.parent / "proto"):
        if (root / PROTOS[0]).is_file():
            return root
    sys.exit(f"{PROTOS[0]} is neither in {HERE / 'proto'} nor in {HERE.parent.parent / 'proto'}")


def generate(target: Path) -> None:
    """Writes mneme/v1/descriptors.binpb and mneme/v1/*_pb2.pyi below `target`."""
    import grpc_tools
    from grpc_tools import protoc

    paths = [
        f"--proto_path={proto_root()}",
        f"--proto_path={Path(grpc_tools.__file__).parent / '_proto'}",
    ]
    descriptors = target / "mneme" / "v1" / "descriptors.binpb"
    for outputs in (
        [f"--descriptor_set_out={descriptors}", "--include_imports", *PROTOS, *OTHER_PROTOS],
        [f"--pyi_out={target}", *PROTOS],
    ):
        arguments = ["protoc", *paths, *outputs]
        if protoc.main(arguments) != 0:
            sys.exit("protoc failed: " + " ".join(arguments))


def elsewhere() -> dict[str, dict[str, str]]:
    """Options by which a wheel is built outside of the source tree, which stays as it is."""
    if "sdist" in sys.argv:  # it copies what setuptools notes down, by paths inside of the tree
        return {}
    scratch = tempfile.mkdtemp(prefix="mneme-client-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return {"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}}


class BuildPy(build_py):
    """Adds what is generated: to the wheel, or to src/ for an editable installation."""

    def run(self) -> None:
        super().run()
        generate(HERE / "src" if self.editable_mode else Path(self.build_lib))


class Sdist(sdist):
    """Takes the proto files along."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        for name in PROTOS + OTHER_PROTOS:
            copy = Path(base_dir) / "proto" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(proto_root() / name, copy)


if __name__ == "__main__":
    if sys.argv[1:2] == ["generate"]:
        generate(HERE / "src")
    else:
        setup(cmdclass={"build_py": BuildPy, "sdist": Sdist}, options=elsewhere())
