"""Class maps of an image: where the classifier sees each class, over scales and mirrored."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from annocoin.backbones import Image, resize_longest_side
from annocoin.errors import InputError
from annocoin.seeds.back_propagation import CellCentres
from annocoin.seeds.classifier import Classifier


class ClassMapper:
    """Computes class maps as means over scales, and over the image and its mirror image.

    Args:
        classifier: in evaluation mode.
        sizes: longer sides of the classifier's inputs, in pixels.
        mirror: whether each input is also mirrored.
        dense: halve the stride of the maps, see `halve_stride`.
        bfloat16: use bfloat16 autocast.

    Example:
        >>> from annocoin.seeds.classifier import ClassifierArchitecture
        >>> net = Classifier(ClassifierArchitecture(("cat", "dog"), "tiny", size=64)).eval()
        >>> image = torch.zeros(48, 64, 3, dtype=torch.uint8).numpy()
        >>> ClassMapper(net, (64, 96), mirror=True)(image).shape
        torch.Size([2, 9, 12])
    """

    def __init__(
        self,
        classifier: Classifier,
        sizes: Sequence[int],
        *,
        mirror: bool = False,
        dense: bool = False,
        bfloat16: bool = False,
    ) -> None:
        if not sizes or min(sizes) < 32:
            raise InputError(f"sizes {tuple(sizes)}; expected sides of at least 32 pixels")
        self.net = halve_stride(classifier) if dense else classifier
        self.sizes, self.mirror, self.bfloat16 = tuple(sizes), mirror, bfloat16
        self.centres = CellCentres.of(fx.symbolic_trace(nn.Sequential(self.net)))

    @torch.inference_mode()
    def __call__(self, image: Image) -> Tensor:
        """Class maps of an RGB image, uint8 [H, W, 3]: logits [C, h, w] on the CPU.

        The cells are those of the largest input, in equal parts of the image.
        """
        maps = [self._maps(image, size) for size in sorted(self.sizes, reverse=True)]
        grid = maps[0].shape[-2:]
        resized = [maps[0]]
        resized += [F.interpolate(m[None], grid, mode="bilinear")[0] for m in maps[1:]]
        return torch.stack(resized).mean(dim=0)

    def _maps(self, image: Image, size: int) -> Tensor:
        pixels = resize_longest_side(image, size).to(self.net.mean.device)
        views = torch.stack([pixels, pixels.flip(2)] if self.mirror else [pixels])
        views = views.contiguous(memory_format=torch.channels_last)
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=self.bfloat16):
            maps = self.net(views).float().cpu()
        maps = torch.stack([self.centres.resample(each, pixels.shape[1:]) for each in maps])
        return torch.stack([maps[0], maps[1].flip(2)]).mean(dim=0) if self.mirror else maps[0]


class _Strided(NamedTuple):
    child: int  # position in the trunk
    position: int  # among all convolutions
    convolution: nn.Conv2d


def halve_stride(classifier: Classifier) -> Classifier:
    """A copy of a classifier whose last stage has stride 1 and dilated convolutions.

    Its maps have twice the resolution; at the cells of the original maps they have the same values.
    A network without strided convolutions is copied as it is.
    """
    copied = copy.deepcopy(classifier)
    convolutions = [
        (child, module)
        for child, layer in enumerate(copied.trunk)
        for module in layer.modules()
        if isinstance(module, nn.Conv2d)
    ]
    strided = [
        _Strided(child, position, module)
        for position, (child, module) in enumerate(convolutions)
        if module.stride == (2, 2)
    ]
    after = copied.trunk[strided[-1].child + 1 :] if strided else ()
    if any(isinstance(m, nn.MaxPool2d | nn.AvgPool2d) for layer in after for m in layer.modules()):
        return copied
    last_stage = [entry for entry in strided if entry.child == strided[-1].child]
    for entry in last_stage:
        entry.convolution.stride = (1, 1)
    # the strided convolution itself still sees the undilated input
    for _, module in convolutions[last_stage[0].position + 1 :] if last_stage else ():
        if module.kernel_size != (1, 1):
            module.dilation, module.padding = (2, 2), (module.kernel_size[0] - 1,) * 2
    return copied
