"""Fewer bytes for each number of an update.

fp16: half precision. int8: whole numbers from −127 to 127, times a scale for each block of numbers, rounded up or down
by chance so that the expected value is right, and with it the mean over clients. The usual way, to add what rounding
takes from an update to the client's next one, needs a state of the client: it would travel through the store, and take
more bytes than int8 saves. Arrays of other types, and small ones, are sent as they are.
"""

from collections.abc import Mapping

import numpy as np

from fedil_model.errors import StateError
from fedil_model.settings import Codec

CODECS: Mapping[str, Codec] = {"fp32": "fp32", "fp16": "fp16", "int8": "int8"}
Arrays = Mapping[str, np.ndarray]
_BLOCK = 256
_SMALL = 1024
_SCALES = ":scales"
"""Suffix of the array that holds the scales of another one"""
_LARGEST = 127


def encode(arrays: Arrays, codec: Codec, chance: np.random.Generator) -> dict[str, np.ndarray]:
    sent: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if codec == "fp32" or array.dtype != np.float32 or array.size < _SMALL:
            sent[name] = array
            continue
        # Numbers that are too large, or none, become infinite or none: the server refuses them.
        with np.errstate(all="ignore"):
            if codec == "fp16":
                sent[name] = array.astype(np.float16)
            else:
                sent[name], sent[name + _SCALES] = _quantised(array, chance)
    return sent


def decode(arrays: Arrays, most_bytes: int) -> dict[str, np.ndarray]:
    """Raises StateError for what `encode` does not make, and for arrays that would take more than `most_bytes`."""
    if sum(4 * array.size for array in arrays.values() if array.itemsize < 4) > most_bytes:
        raise StateError(f"the update has more than {most_bytes} bytes")
    return {name: _restored(name, arrays) for name in arrays if not name.endswith(_SCALES)}


def _quantised(array: np.ndarray, chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    blocks = _in_blocks(array)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(_LARGEST)
    # Where all numbers of a block are 0 the scale is, too.
    exact = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales != 0)
    whole = np.floor(exact + chance.random(exact.shape, np.float32))
    numbers = np.clip(whole, -_LARGEST, _LARGEST).astype(np.int8)
    return numbers.reshape(-1)[: array.size].reshape(array.shape), scales.reshape(-1)


def _restored(name: str, arrays: Arrays) -> np.ndarray:
    array, scales = arrays[name], arrays.get(name + _SCALES)
    if array.dtype == np.float16:
        return array.astype(np.float32)
    if array.dtype != np.int8 or scales is None:
        return array
    blocks = _in_blocks(array)
    if scales.dtype != np.float32 or scales.shape != (len(blocks),):
        raise StateError(f"{name} has {array.size} numbers and {scales.size} scales of type {scales.dtype}")
    restored = blocks * scales[:, None]
    return restored.reshape(-1)[: array.size].reshape(array.shape)


def _in_blocks(array: np.ndarray) -> np.ndarray:
    flat = array.reshape(-1)
    padded = np.zeros(-(-flat.size // _BLOCK) * _BLOCK, flat.dtype)
    padded[: flat.size] = flat
    return padded.reshape(-1, _BLOCK)
