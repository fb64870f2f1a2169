"""The parts that tools/convert_titans_pytorch.py needs of PyTorch, for its tests where that is not installed:
tensors of float32 that are bytes and a shape, and files of them, which are read as the converter has
to read those of a stranger: tensors and containers, nothing that runs."""

import math
import pickle

float32 = "float32"


class Tensor:
    def __init__(self, shape, data):
        assert len(data) == 4 * math.prod(shape)
        self.shape, self.data = tuple(shape), bytes(data)

    def reshape(self, shape):
        return Tensor(shape, self.data)

    def detach(self):
        return self

    float = clone = contiguous = detach


def frombuffer(data, dtype):
    assert dtype == float32
    return Tensor((len(data) // 4,), data)


def zeros(shape):
    return Tensor(shape, bytes(4 * math.prod(shape)))


def save(value, path):
    with open(path, "wb") as file:
        pickle.dump(value, file)


class _Reader(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) != ("torch", "Tensor"):
            raise pickle.UnpicklingError(f"Weights only load failed: {module}.{name} is not allowed")
        return Tensor


def load(path, map_location=None, weights_only=False):
    assert map_location == "cpu" and weights_only is True
    with open(path, "rb") as file:
        return _Reader(file).load()
