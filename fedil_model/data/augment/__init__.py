"""Views of raw samples (plain, weak, strong), as batched tensor operations: no picture is handled alone."""

from fedil_model.data.augment.distortion import Distortion
from fedil_model.data.augment.images import ImageViews
from fedil_model.data.augment.tensors import TensorViews

__all__ = ["Distortion", "ImageViews", "TensorViews"]
