"""Generates the messages of package mneme.v1 from the server's proto files while building.

Generated code is not kept in the repository, so it cannot get stale. The proto files are those of
the repository (../../proto) or, in a source distribution, a copy beside this file.
"""

import importlib.metadata
import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
PROTOS = ["mneme/v1/inference.proto", "mneme/v1/sessions.proto"]


def proto_root() -> Path:
    for root in (HERE / "proto", HERE.parent.parent / "proto"):
        if (root / PROTOS[0]).is_file():
            return root
    sys.exit(f"{PROTOS[0]} is neither in {HERE / 'proto'} nor in {HERE.parent.parent / 'proto'}")


def generate(target: Path) -> None:
    """Writes mneme/v1/*_pb2.py, *_pb2.pyi and *_pb2_grpc.py below `target`."""
    import grpc_tools
    from grpc_tools import protoc

    arguments = [
        "protoc",
        f"--proto_path={proto_root()}",
        f"--proto_path={Path(grpc_tools.__file__).parent / '_proto'}",
        f"--python_out={target}",
        f"--pyi_out={target}",
        f"--grpc_python_out={target}",
        *PROTOS,
    ]
    if protoc.main(arguments) != 0:
        sys.exit("protoc failed: " + " ".join(arguments))


def runtime_requirements() -> list[str]:
    """Generated code refuses to run with an older grpcio or protobuf than it was made with."""
    tools = importlib.metadata.distribution("grpcio-tools")
    protobuf = [r for r in tools.requires or [] if r.split(";")[0].strip().startswith("protobuf")]
    return [
        f"grpcio>={tools.version}",
        "grpcio-health-checking",
        "googleapis-common-protos>=1.60",
        *protobuf,
    ]


class BuildPy(build_py):
    """Adds the generated modules: to the wheel, or to src/ for an editable installation."""

    def run(self) -> None:
        super().run()
        generate(HERE / "src" if self.editable_mode else Path(self.build_lib))


class Sdist(sdist):
    """Takes the proto files along."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        for name in PROTOS:
            copy = Path(base_dir) / "proto" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(proto_root() / name, copy)


if __name__ == "__main__":
    if sys.argv[1:2] == ["generate"]:
        generate(HERE / "src")
    else:
        setup(
            cmdclass={"build_py": BuildPy, "sdist": Sdist}, install_requires=runtime_requirements()
        )
